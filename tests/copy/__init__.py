# noqa: A005 - mirrors kvtide.copy; absolute imports only, so the standard library is not shadowed
