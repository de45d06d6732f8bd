"""Every format becomes the same kind of request; what cannot be read is named."""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from kvtide.traces import Trace, TraceError, TraceRequest, open_trace
from tests.traces.support import mooncake_line, write


def test_a_line_of_mooncakes_format_is_a_request(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", mooncake_line(1500, 600, [7, 8], 5)))
    assert list(trace) == [TraceRequest(1.5, (7, 8), 600, 5)]
    assert trace.block_tokens == 512


def test_a_trace_can_be_read_twice(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", mooncake_line(), mooncake_line(5)))
    assert list(trace) == list(trace)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        (mooncake_line(timestamp=-1), "time -0.001"),
        (mooncake_line(timestamp="soon"), "timestamp='soon'"),
        (mooncake_line(timestamp=float("nan")), "time nan"),
        (mooncake_line(tokens=0, hashes=[]), "prompt of 0 tokens"),
        (mooncake_line(tokens=2.5), "input_length=2.5"),
        (mooncake_line(output=-1), "output of -1 tokens"),
        (mooncake_line(hashes=[1, 2, 3]), "3 hashes for 600 tokens: expected 2"),
        (mooncake_line(hashes=["a", "b"]), "hash_ids"),
        (mooncake_line(hashes=[True, 2]), "hash_ids"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_line_without_meaning_is_skipped_with_its_number_or_fatal(tmp_path: Path, line: str, why: str) -> None:
    path = write(tmp_path / "t", mooncake_line(), "", line, mooncake_line())
    skipped: list[tuple[int, str]] = []
    trace = open_trace(path, on_skip=lambda number, text: skipped.append((number, text)))
    assert len(list(trace)) == 2
    assert trace.skipped == 1
    [(number, text)] = skipped
    assert number == 3
    assert why in text
    with pytest.raises(TraceError, match=r"line 3: .*"):
        list(open_trace(path, strict=True))


def test_a_file_that_is_missing_empty_or_unreadable_is_an_error(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        (write(tmp_path / "empty"), "empty"),
        (write(tmp_path / "blank", "", " "), "empty"),
        (write(tmp_path / "prose", "hello", "world"), "unknown format"),
        (
            write(tmp_path / "cut", "", mooncake_line()[:50]),
            r"unknown format \(line 2: not valid JSON\): expected lines",
        ),
        (write(tmp_path / "list", "[1]"), r"unknown format \(line 1: not a JSON object\)"),
        (write(tmp_path / "other", '{"a": 1}'), "unknown format: expected lines of mooncake, openai, vllm"),
    ):
        with pytest.raises(TraceError, match=why):
            open_trace(path)
    with pytest.raises(TraceError, match="no line of it can be read"):
        list(open_trace(write(tmp_path / "bad", mooncake_line(-1), mooncake_line(-2))))


def test_an_unknown_format_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match='did you mean "mooncake"'):
        open_trace(tmp_path / "t", trace_format="moncake")


def test_bytes_that_are_no_text_are_only_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(mooncake_line().encode() + b"\n\xff\xfe\x00\n")
    trace = open_trace(path)
    assert len(list(trace)) == 1
    assert trace.skipped == 1


def chat(time: object, *texts: str, **more: object) -> str:
    roles = ["user", "assistant"]
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return json.dumps({"timestamp": time, "messages": messages, **more})


def chats(tmp_path: Path, *lines: str, block_tokens: int = 4) -> Trace:
    return open_trace(write(tmp_path / "chats", *lines), block_tokens=block_tokens)


def test_turns_of_a_chat_share_the_hashes_of_what_they_share(tmp_path: Path) -> None:
    first, second, other = chats(
        tmp_path,
        chat(100, "hello, how are you today? " * 4),
        chat(107.5, "hello, how are you today? " * 4, "fine", "good"),
        chat(108, "something else, of some length, and then some more"),
    )
    assert (first.time_s, second.time_s) == (0, 7.5)
    full = first.prompt_tokens // 4
    assert first.hashes[:full] == second.hashes[:full]
    assert second.prompt_tokens > first.prompt_tokens
    assert not set(other.hashes) & set(first.hashes)


def test_a_chat_log_tells_output_and_session_where_it_knows_them(tmp_path: Path) -> None:
    lines = [
        chat(0, "question", usage={"completion_tokens": 9}, session_id=3),
        chat(0, "question", response={"usage": {"completion_tokens": 8}}, user="u"),
        chat(0, "question", response="an answer of 24 letters"),
        chat("2026-01-01T00:00:05Z", "question"),
    ]
    read = list(chats(tmp_path, *lines[:3]))
    assert [one.output_tokens for one in read] == [9, 8, 6]
    assert [one.session for one in read] == ["3", "u", None]
    assert next(iter(chats(tmp_path, lines[3]))).time_s == 0


def test_batch_files_and_content_in_parts_are_read(tmp_path: Path) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url"}]}
    line = json.dumps({"created": 5, "body": {"messages": [message]}})
    assert next(iter(chats(tmp_path, line))).prompt_tokens == -(-len("<|user|>look") // 4)


@pytest.mark.parametrize("record", [{"messages": [{}]}, {"messages": [1]}, {"messages": [], "timestamp": 0}])
def test_a_chat_without_a_role_a_time_or_a_message_is_no_request(tmp_path: Path, record: object) -> None:
    trace = chats(tmp_path, chat(0, "hello"), json.dumps(record))
    assert len(list(trace)) == 1
    assert trace.skipped == 1


LOG = "(APIServer pid=7) DEBUG {time} [request_logger.py:49] Request {id} details: prompt: 'a, prompt', "
LOG += "prompt_token_ids: {tokens}, prompt_embeds shape: None."


def test_the_log_of_vllm_has_requests_between_other_lines(tmp_path: Path) -> None:
    tokens = list(range(20))
    path = write(
        tmp_path / "log",
        "(APIServer pid=7) INFO 12-31 23:59:57 [api_server.py:1] Starting",
        LOG.format(time="12-31 23:59:58", id="chat-1", tokens=tokens),
        "(APIServer pid=7) INFO 12-31 23:59:58 [request_logger.py:60] Received request chat-1: params: …",
        LOG.format(time="01-01 00:00:03", id="chat-2", tokens=[*tokens, 99]),
    )
    first, second = open_trace(path)
    assert (first.time_s, second.time_s) == (0, 5)
    assert first.hashes[0] == second.hashes[0]
    assert first.hashes[1] != second.hashes[1]
    assert (first.prompt_tokens, second.prompt_tokens) == (20, 21)


def test_a_request_whose_tokens_vllm_did_not_log_is_skipped(tmp_path: Path) -> None:
    good = LOG.format(time="01-01 00:00:03", id="b", tokens=[1, 2])
    bad = (LOG.format(time="01-01 00:00:03", id="a", tokens=None), LOG.format(time="", id="a", tokens=[1]))
    trace = open_trace(write(tmp_path / "log", *bad, good))
    assert len(list(trace)) == 1
    assert trace.skipped == 2


def test_a_tokenizer_that_is_not_installed_says_what_to_install(tmp_path: Path) -> None:
    path = write(tmp_path / "chats", chat(0, "hello"))
    with pytest.raises(TraceError, match="--tokenizer some/model"):
        open_trace(path, tokenizer_name="some/model")


def test_a_pipe_is_read_once_and_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    lines = [mooncake_line(1000 * number) for number in range(2000)]
    writer = threading.Thread(target=write, args=(path, *lines), daemon=True)
    writer.start()
    trace = open_trace(path)
    assert [request.time_s for request in trace] == list(range(2000))
    writer.join(timeout=10)
    assert not writer.is_alive()
    with pytest.raises(TraceError, match="can be read only once"):
        next(iter(trace))


def test_standard_input_is_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with write(tmp_path / "t", mooncake_line(), mooncake_line(5)).open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        trace = open_trace("-")
        assert len(list(trace)) == 2
        assert trace.lines.name == "standard input"


def test_a_packed_trace_is_read_whatever_its_name(tmp_path: Path) -> None:
    for name in ("t.jsonl.gz", "t"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(f"{mooncake_line()}\n{mooncake_line(5)}\n".encode()))
        trace = open_trace(path)
        assert len(list(trace)) == 2
        assert list(trace) == list(trace)


def test_a_packed_trace_that_is_cut_off_or_damaged_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    packed = gzip.compress("".join(f"{mooncake_line(n)}\n" for n in range(3000)).encode())
    for broken in (packed[:-200], packed[:-8] + bytes(8), packed[:10] + b"\xff" * 10 + packed[20:]):
        path.write_bytes(broken)
        with pytest.raises(
            TraceError, match=r"t\.gz: what gzip has packed is cut off or damaged .*; zcat unpacks what"
        ):
            list(open_trace(path))


def batch(url: str = "/v1/chat/completions", **body: object) -> str:
    return json.dumps({"custom_id": "request-1", "method": "POST", "url": url, "body": {"model": "m", **body}})


def test_lines_of_a_batch_file_come_at_a_steady_rate(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello, how are you today? " * 4}]
    path = write(
        tmp_path / "batch.jsonl",
        batch(messages=messages, user="u"),
        batch(messages=messages, max_tokens=5),
        batch("/v1/completions", prompt="hello"),
        batch("/v1/completions", prompt=[1, 2, 3]),
        batch("/v1/embeddings", input="hello"),
    )
    trace = open_trace(path, requests_per_s=2)
    first, second, text, tokens = trace
    assert [one.time_s for one in (first, second, text, tokens)] == [0, 0.5, 1, 1.5]
    assert first.hashes == second.hashes
    assert first.session == "u"
    assert (text.prompt_tokens, tokens.prompt_tokens) == (2, 3)
    assert trace.untimed == 4
    assert trace.skipped_by == {"messages: expected a list": 1}


def test_a_log_of_vllm_without_token_ids_says_which_options_are_missing(tmp_path: Path) -> None:
    path = write(
        tmp_path / "log",
        "INFO 12-31 23:59:57 [api_server.py:1] Starting",
        "(APIServer pid=7) INFO 12-31 23:59:58 [request_logger.py:60] Received request chat-1: params: …",
    )
    with pytest.raises(TraceError, match=r"--enable-log-requests .*--log-level DEBUG.*VLLM_LOGGING_LEVEL=DEBUG"):
        list(open_trace(path))


def test_skipped_lines_are_totalled_by_reason(tmp_path: Path) -> None:
    bad = (mooncake_line(tokens=2.5), mooncake_line(tokens=3.5), mooncake_line(timestamp=-1), "{")
    trace = open_trace(write(tmp_path / "t", mooncake_line(), *bad))
    assert len(list(trace)) == 1
    assert trace.skipped_by == {"input_length is no whole number": 2, "bad time": 1, "not valid JSON": 1}
    with pytest.raises(TraceError, match="no line of it can be read as a request \\(input_length is no whole"):
        list(open_trace(write(tmp_path / "bad", *bad), trace_format="mooncake"))
