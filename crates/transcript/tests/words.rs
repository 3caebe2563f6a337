//! What agents said last, on streams of real clients and on such as nobody should write.

use std::fs;
use std::path::PathBuf;

use kennel_transcript::{Format, last_words};

fn sample(file: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(file);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_last_words_of_real_clients_are_words() {
    use Format::{Aider, Claude, Codex, Copilot, Gemini, Goose, Opencode, Qwen};
    let limit = "You've hit your 5-hour limit \u{b7} resets 9:11pm (UTC)";
    let aborted = "Spawning.\n[ede_diagnostic] result_type=user last_content_type=n/a \
                   stop_reason=tool_use";
    let too_many = "exceeded retry limit, last status: 429 Too Many Requests";
    let refused = "Reconnecting... 4/5 (exceeded retry limit, last status: 429 Too Many Requests)\n\
                   Reconnecting... 5/5 (exceeded retry limit, last status: 429 Too Many Requests)";
    let invalid = "[API Error: {\"type\":\"error\",\"error\":{\"type\":\
                   \"invalid_request_error\",\"message\":\"mock invalid_request_error\",\
                   \"code\":\"invalid_request_error\"}}]";
    for (format, file, said) in [
        (Claude, "claude-2.1.325-ok.jsonl", "All done."),
        (Claude, "claude-2.1.325-partial.jsonl", "Hello from the mock."),
        (Claude, "claude-2.1.325-api-error-400.jsonl", "API Error: 400 mock invalid_request_error"),
        (Claude, "claude-2.1.325-max-turns.jsonl", "Reached maximum number of turns (2)"),
        (Claude, "claude-2.1.325-rate-limit-rejected.jsonl", limit),
        (Claude, "claude-2.1.325-retry-429.jsonl", "Recovered."),
        (Claude, "claude-2.1.325-sigint-in-tool.jsonl", aborted),
        (Codex, "codex-0.166.0-ok.jsonl", "All done."),
        (Codex, "codex-0.166.0-sigint-in-tool.jsonl", "Spawning."),
        (Codex, "codex-0.166.0-429.jsonl", &format!("{refused}\n{too_many}")),
        (Gemini, "gemini-0.61.0-ok.jsonl", "All done."),
        (Gemini, "gemini-0.61.0-api-error-400.jsonl", invalid),
        (Opencode, "opencode-1.18.33-ok.jsonl", "All done."),
        (Opencode, "opencode-1.18.33-429.jsonl", "mock rate_limit_error"),
        (Qwen, "qwen-0.24.4-ok.jsonl", "All done."),
        (Copilot, "copilot-1.0.102-ok.jsonl", "All done."),
        (Goose, "goose-1.52.0-ok.jsonl", "All done."),
        (Goose, "goose-1.52.0-sigint-in-tool.txt", "Spawning.\nHeadless run interrupted"),
    ] {
        assert_eq!(last_words(format, &sample(file)).as_deref(), Some(said), "{file}");
    }
    assert_eq!(last_words(Aider, &sample("aider-0.86.2-stdout.txt")), None);
}

#[test]
fn pieces_of_a_response_belong_together_and_what_was_got_over_is_left_out() {
    let said = |id: &str, text: &str, more: &str| {
        format!(
            "{{\"type\":\"assistant\"{more},\"message\":{{\"id\":\"{id}\",\"content\":\
             [{{\"type\":\"text\",\"text\":\"{text}\"}}]}}}}\n"
        )
    };
    let of_subagent = said("2", "to my agent", ",\"parent_tool_use_id\":\"t\"");
    let stream = [
        "cut off, of a line before\"}\n",
        &said("1", "first", ""),
        "npm warn\n",
        &said("2", "one", ""),
        &of_subagent,
        &said("2", "two", ""),
        "Segmentation fault\n",
        "{\"type\":\"assistant\",\"mess",
    ]
    .concat();
    let words = last_words(Format::Claude, stream.as_bytes());
    assert_eq!(words.as_deref(), Some("one\ntwo\nSegmentation fault"));
    let pieces = "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"a\"}\n".repeat(2);
    let tool = "{\"type\":\"tool_use\"}\n";
    let words = last_words(Format::Gemini, [&pieces, tool, &pieces].concat().as_bytes());
    assert_eq!(words.as_deref(), Some("aa"));
}

#[test]
fn whatever_is_written_there_is_nothing_but_words_or_none() {
    for format in Format::ALL {
        for stream in [
            "",
            "\n\n",
            "{}",
            "[1]",
            "{\"type\":7}",
            "{\"type\":\"result\",\"is_error\":true,\"errors\":7}",
            "{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"text\"}]}}",
            "{\"type\":\"result\",\"result\":{\"a\":1},\"status\":\"success\"}",
        ] {
            let words = last_words(format, stream.as_bytes());
            assert!(words.is_none() || stream == "[1]", "{format}: {stream}: {words:?}");
        }
        assert_eq!(last_words(format, &[b'{'; 1 << 16]), None);
        let _ = last_words(format, b"\xff\xfe{\"type\":\"error\",\"message\":\"\xff\"}");
    }
}
