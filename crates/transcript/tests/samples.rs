//! Streams of real clients, and what they have to add up to, worked out by hand.
//!
//! The samples were captured from the clients and versions in their names, driven by a scripted
//! model, with dummy content; paths were replaced and long constant lists cut. In those called `ok`
//! the model thinks and asks for one tool, then for two at once, then ends: 3 responses, 2 of them
//! with tools, 3 calls. Each response used 100 tokens of plain input, 1000 from the cache, 50 to
//! the cache for five minutes, and 20 of output; services that tell nothing of writing to a cache
//! leave the 50 out.
//!
//! Prices are dollars per million tokens, as in `prices.json`, so that sums are millionths of a
//! dollar:
//!
//! | model | in | cache read | write 5m | write 1h | out | one response of `ok` |
//! |---|---|---|---|---|---|---|
//! | claude-sonnet-5 | 2 | 0.2 | 2.5 | 4 | 10 | 200 + 200 + 125 + 0 + 200 = 725 |
//! | claude-sonnet-4-5 | 3 | 0.3 | 3.75 | 6 | 15 | 300 + 300 + 187.5 + 0 + 300 = 1087.5 |
//! | the dearest of each | 10 | 1 | 12.5 | 20 | 50 | |

use std::fs;
use std::path::PathBuf;

use kennel_transcript::{
    CostBasis, Ending, Entry, Format, History, Prices, RateLimit, Reader, Source, Standing, Tally,
    Tokens, Used, Waiting,
};

const FILE: Source = Source::File { subagent: false };

/// A sample and what it has to add up to when it is the only source of a fresh run.
struct Sample {
    file: &'static str,
    format: Format,
    source: Source,
    /// Turns, tool-using turns, tool calls, open calls.
    counts: (u64, u64, u64, u64),
    /// Input, output, cache read, write 5m, write 1h.
    tokens: [u64; 5],
    usd: f64,
    basis: Basis,
    session: Option<&'static str>,
    ending: Option<(bool, &'static str)>,
}

/// [`CostBasis`] without its date.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Basis {
    Unknown,
    Said,
    Priced,
    Dearest(&'static str),
}

const CLAUDE: Format = Format::Claude;
const OUT: Source = Source::Stdout;
const SUCCESS: Option<(bool, &str)> = Some((false, "success"));

const SAMPLES: &[Sample] = &[
    // Three responses: 3 * 725, said by the client in the last line.
    Sample {
        file: "claude-2.1.325-ok.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (3, 2, 3, 0),
        tokens: [300, 60, 3000, 150, 0],
        usd: 0.002_175,
        basis: Basis::Said,
        session: Some("3a6861f1-d6ca-496f-bb92-7fe44e887adf"),
        ending: SUCCESS,
    },
    // The same run on disk, priced line by line; the client's own total at the end agrees.
    Sample {
        file: "claude-2.1.325-transcript-on-disk.jsonl",
        format: CLAUDE,
        source: FILE,
        counts: (3, 2, 3, 0),
        tokens: [300, 60, 3000, 150, 0],
        usd: 0.002_175,
        basis: Basis::Said,
        session: Some("3a6861f1-d6ca-496f-bb92-7fe44e887adf"),
        ending: None,
    },
    // claude-sonnet-4-5: 3 * 1087.5.
    Sample {
        file: "claude-2.1.197-ok.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (3, 2, 3, 0),
        tokens: [300, 60, 3000, 150, 0],
        usd: 0.003_262_5,
        basis: Basis::Said,
        session: Some("7c6cc225-be4e-4ded-9816-113e95528ca9"),
        ending: SUCCESS,
    },
    // The service refused the only request; the client's own text in its place is no turn.
    Sample {
        file: "claude-2.1.325-api-error-400.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (0, 0, 0, 0),
        tokens: [0; 5],
        usd: 0.0,
        basis: Basis::Said,
        session: Some("cc428f13-9a3e-45f9-b586-1064768a7e07"),
        ending: Some((true, "api_error")),
    },
    // Two results with a response between them; the total of the second has all three: 3 * 725.
    Sample {
        file: "claude-2.1.325-background-shell.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (3, 1, 1, 0),
        tokens: [300, 60, 3000, 150, 0],
        usd: 0.002_175,
        basis: Basis::Said,
        session: Some("f6d23b20-f807-4259-94af-e14b9d81feb1"),
        ending: SUCCESS,
    },
    // Four responses began and one was interrupted, which is no turn. The client leaves it out of
    // its total, 3 * 725; what it read is counted here: input 4 * 100, cache 4 * 1000 and 4 * 50,
    // and of the output the 3 * 20 of those that ended.
    Sample {
        file: "claude-2.1.325-control-protocol.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (3, 1, 1, 0),
        tokens: [400, 60, 4000, 200, 0],
        usd: 0.002_175,
        basis: Basis::Said,
        session: Some("1328b202-ba15-412c-a582-d2f5c76e8fa6"),
        ending: SUCCESS,
    },
    // One response: 725.
    Sample {
        file: "claude-2.1.325-hook-stop.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (1, 1, 1, 0),
        tokens: [100, 20, 1000, 50, 0],
        usd: 0.000_725,
        basis: Basis::Said,
        session: Some("b7eea164-e7ad-4872-8cf8-52012ef636e9"),
        ending: SUCCESS,
    },
    // Three responses of 1000 in, 5000 out, 20000 read, 3000 and 1000 written: 3 * (1000 * 2 + 5000
    // * 10 + 20000 * 0.2 + 3000 * 2.5 + 1000 * 4) = 3 * 67500. The budget stopped the last call
    // before its tool ran.
    Sample {
        file: "claude-2.1.325-max-budget.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (3, 3, 3, 1),
        tokens: [3000, 15_000, 60_000, 9000, 3000],
        usd: 0.202_5,
        basis: Basis::Said,
        session: Some("6afb2153-d51f-43f9-a0b2-c069a83a28eb"),
        ending: Some((true, "error_max_budget_usd")),
    },
    // 2 * 725. The client's own num_turns says 3.
    Sample {
        file: "claude-2.1.325-max-turns.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (2, 2, 2, 0),
        tokens: [200, 40, 2000, 100, 0],
        usd: 0.001_45,
        basis: Basis::Said,
        session: Some("f08e778c-9531-4fe9-8a30-6685b2cbb25a"),
        ending: Some((true, "error_max_turns")),
    },
    Sample {
        file: "claude-2.1.325-partial.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (1, 0, 0, 0),
        tokens: [100, 20, 1000, 50, 0],
        usd: 0.000_725,
        basis: Basis::Said,
        session: Some("9cfd7bb1-51c4-48d7-9763-a08a1426dfef"),
        ending: SUCCESS,
    },
    Sample {
        file: "claude-2.1.325-permission-denied.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (2, 1, 1, 0),
        tokens: [200, 40, 2000, 100, 0],
        usd: 0.001_45,
        basis: Basis::Said,
        session: Some("8395227b-b6f6-4c13-b38f-3c061d6d5f33"),
        ending: SUCCESS,
    },
    // The second request was refused: one response. A "success" that is an error.
    Sample {
        file: "claude-2.1.325-rate-limit-rejected.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (1, 1, 1, 0),
        tokens: [100, 20, 1000, 50, 0],
        usd: 0.000_725,
        basis: Basis::Said,
        session: Some("34014367-a751-4409-b4b0-d1ea39a257a2"),
        ending: Some((true, "api_error")),
    },
    Sample {
        file: "claude-2.1.325-rate-limit-warning.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (2, 1, 1, 0),
        tokens: [200, 40, 2000, 100, 0],
        usd: 0.001_45,
        basis: Basis::Said,
        session: Some("a73e4cb5-e90f-417a-95a9-c1bd95b0b570"),
        ending: SUCCESS,
    },
    Sample {
        file: "claude-2.1.325-retry-429.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (2, 1, 1, 0),
        tokens: [200, 40, 2000, 100, 0],
        usd: 0.001_45,
        basis: Basis::Said,
        session: Some("679efe7f-a29c-4a9d-afc8-ab3cd0bdc7cd"),
        ending: SUCCESS,
    },
    Sample {
        file: "claude-2.1.325-sigint-in-tool.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (1, 1, 1, 0),
        tokens: [100, 20, 1000, 50, 0],
        usd: 0.000_725,
        basis: Basis::Said,
        session: Some("abd6d4e3-2371-4ba0-8353-798cd256ea82"),
        ending: Some((true, "error_during_execution")),
    },
    // Killed before a result: all there is is the placeholder, with 1 token of output instead of
    // 20: 100 * 2 + 1000 * 0.2 + 50 * 2.5 + 1 * 10 = 535.
    Sample {
        file: "claude-2.1.325-sigterm-in-tool.jsonl",
        format: CLAUDE,
        source: OUT,
        counts: (1, 1, 1, 0),
        tokens: [100, 1, 1000, 50, 0],
        usd: 0.000_535,
        basis: Basis::Priced,
        session: Some("48fd40d4-72d7-41ad-955d-4a93039fb495"),
        ending: None,
    },
    // Standard output names no model and no responses; input is 3300 - 3000. The dearest price:
    // 300 * 10 + 60 * 50 + 3000 * 1 = 9000.
    Sample {
        file: "codex-0.166.0-ok.jsonl",
        format: Format::Codex,
        source: OUT,
        counts: (0, 0, 3, 0),
        tokens: [300, 60, 3000, 0, 0],
        usd: 0.009,
        basis: Basis::Dearest(""),
        session: Some("01a1e0b7-6787-7451-8b85-6b0e2fff5ae1"),
        ending: Some((false, "completed")),
    },
    // The same thread on disk, resumed once with one response more. gpt-5.2-codex is 1.75 in, 0.175
    // read, 14 out: 4 * (100 * 1.75 + 1000 * 0.175 + 20 * 14) = 4 * 630. The lines with the tools
    // were cut from the sample.
    Sample {
        file: "codex-0.166.0-rollout-on-disk-usage.jsonl",
        format: Format::Codex,
        source: FILE,
        counts: (4, 0, 0, 0),
        tokens: [400, 80, 4000, 0, 0],
        usd: 0.002_52,
        basis: Basis::Priced,
        session: Some("01a1e0b7-6787-7451-8b85-6b0e2fff5ae1"),
        ending: Some((false, "completed")),
    },
    Sample {
        file: "codex-0.166.0-429.jsonl",
        format: Format::Codex,
        source: OUT,
        counts: (0, 0, 0, 0),
        tokens: [0; 5],
        usd: 0.0,
        basis: Basis::Unknown,
        session: Some("01a1e0bb-4b78-7ee1-8051-faa400a03536"),
        ending: Some((true, "failed")),
    },
    Sample {
        file: "codex-0.166.0-sigint-in-tool.jsonl",
        format: Format::Codex,
        source: OUT,
        counts: (0, 0, 1, 1),
        tokens: [0; 5],
        usd: 0.0,
        basis: Basis::Unknown,
        session: Some("01a1e0b8-3e03-7153-bf63-1fe32adea3f8"),
        ending: None,
    },
    // Two calls, to start the sub-agent and to wait for it. What the sub-agent used is not in it.
    Sample {
        file: "codex-0.166.0-subagent.jsonl",
        format: Format::Codex,
        source: OUT,
        counts: (0, 0, 2, 0),
        tokens: [300, 60, 3000, 0, 0],
        usd: 0.009,
        basis: Basis::Dearest(""),
        session: Some("01a1e0bd-27e7-7a50-a2ea-1411e715f2e0"),
        ending: Some((false, "completed")),
    },
    // Two responses, each told with the total after its tools, and one and two permissions asked
    // for; input 2200 - 2000: 200 * 10 + 40 * 50 + 2000 * 1 = 6000.
    Sample {
        file: "codex-0.166.0-app-server.jsonl",
        format: Format::Codex,
        source: OUT,
        counts: (2, 2, 0, 0),
        tokens: [200, 40, 2000, 0, 0],
        usd: 0.006,
        basis: Basis::Dearest(""),
        session: Some("01a1e0de-207e-7592-a823-cd40ac2fed52"),
        ending: Some((true, "interrupted")),
    },
    // gemini-2.5-pro is 1.25 in, 0.125 read, 10 out: 300 * 1.25 + 3000 * 0.125 + 60 * 10 = 1350.
    Sample {
        file: "gemini-0.61.0-ok.jsonl",
        format: Format::Gemini,
        source: OUT,
        counts: (3, 2, 3, 0),
        tokens: [300, 60, 3000, 0, 0],
        usd: 0.001_35,
        basis: Basis::Priced,
        session: Some("192a49fb-2cc7-4696-8f0b-ea54ac93d094"),
        ending: SUCCESS,
    },
    // The same session on disk, as far as it had come: 2 * (100 * 1.25 + 1000 * 0.125 + 20 * 10).
    Sample {
        file: "gemini-0.61.0-chat-on-disk.jsonl",
        format: Format::Gemini,
        source: FILE,
        counts: (2, 2, 3, 0),
        tokens: [200, 40, 2000, 0, 0],
        usd: 0.000_9,
        basis: Basis::Priced,
        session: Some("192a49fb-2cc7-4696-8f0b-ea54ac93d094"),
        ending: None,
    },
    Sample {
        file: "gemini-0.61.0-api-error-400.jsonl",
        format: Format::Gemini,
        source: OUT,
        counts: (0, 0, 0, 0),
        tokens: [0; 5],
        usd: 0.0,
        basis: Basis::Priced,
        session: Some("91934755-863f-47ec-bb75-bac09284593b"),
        ending: Some((true, "error")),
    },
    // The client says 0.00024 for each of three steps.
    Sample {
        file: "opencode-1.18.33-ok.jsonl",
        format: Format::Opencode,
        source: OUT,
        counts: (3, 2, 3, 0),
        tokens: [300, 60, 3000, 0, 0],
        usd: 0.000_72,
        basis: Basis::Said,
        session: Some("ses_e1f39b056ffe0gcOzHz25kt5kQ"),
        ending: None,
    },
    Sample {
        file: "opencode-1.18.33-permission-denied.jsonl",
        format: Format::Opencode,
        source: OUT,
        counts: (1, 1, 1, 0),
        tokens: [100, 20, 1000, 0, 0],
        usd: 0.000_24,
        basis: Basis::Said,
        session: Some("ses_e1f354037ffeqXMdrVEVGQD9Ue"),
        ending: None,
    },
    Sample {
        file: "opencode-1.18.33-429.jsonl",
        format: Format::Opencode,
        source: OUT,
        counts: (0, 0, 0, 0),
        tokens: [0; 5],
        usd: 0.0,
        basis: Basis::Unknown,
        session: Some("ses_e1f36eeb0ffeWekk7CXKV3ebuY"),
        ending: None,
    },
    // A model that is not in the table: 300 * 10 + 60 * 50 + 3000 * 1 = 9000.
    Sample {
        file: "qwen-0.24.4-ok.jsonl",
        format: Format::Qwen,
        source: OUT,
        counts: (3, 2, 3, 0),
        tokens: [300, 60, 3000, 0, 0],
        usd: 0.009,
        basis: Basis::Dearest("qwen3-coder-plus"),
        session: Some("542508ab-ed86-4527-b140-4f76e0132697"),
        ending: SUCCESS,
    },
    // What was used is on disk only.
    Sample {
        file: "copilot-1.0.102-ok.jsonl",
        format: Format::Copilot,
        source: OUT,
        counts: (3, 2, 3, 0),
        tokens: [0; 5],
        usd: 0.0,
        basis: Basis::Unknown,
        session: Some("526bc797-23ed-4c2e-9169-a0acefec988d"),
        ending: Some((false, "exit 0")),
    },
    // Input is 1150 - 1000 - 50. claude-sonnet-4-5, which Copilot writes with a dot: 3 * 1087.5.
    Sample {
        file: "copilot-1.0.102-events-on-disk.jsonl",
        format: Format::Copilot,
        source: FILE,
        counts: (3, 2, 0, 0),
        tokens: [300, 60, 3000, 150, 0],
        usd: 0.003_262_5,
        basis: Basis::Priced,
        session: Some("526bc797-23ed-4c2e-9169-a0acefec988d"),
        ending: None,
    },
    // Exit code 0, and yet aborted, in the middle of a tool.
    Sample {
        file: "copilot-1.0.102-sigterm-in-tool.jsonl",
        format: Format::Copilot,
        source: OUT,
        counts: (1, 1, 1, 1),
        tokens: [0; 5],
        usd: 0.0,
        basis: Basis::Unknown,
        session: Some("aaa05467-ed8b-4ced-a461-22760f064555"),
        ending: Some((true, "aborted")),
    },
    // Input is 3450 - 3000 - 150; the client says 0.0032625, which is 3 * 1087.5.
    Sample {
        file: "goose-1.52.0-ok.jsonl",
        format: Format::Goose,
        source: OUT,
        counts: (3, 2, 3, 0),
        tokens: [300, 60, 3000, 150, 0],
        usd: 0.003_262_5,
        basis: Basis::Said,
        session: None,
        ending: Some((false, "complete")),
    },
    // Text and an object on the last line.
    Sample {
        file: "goose-1.52.0-sigint-in-tool.txt",
        format: Format::Goose,
        source: OUT,
        counts: (1, 1, 1, 1),
        tokens: [0; 5],
        usd: 0.0,
        basis: Basis::Unknown,
        session: None,
        ending: None,
    },
    Sample {
        file: "aider-0.86.2-analytics-log.jsonl",
        format: Format::Aider,
        source: FILE,
        counts: (1, 0, 0, 0),
        tokens: [1100, 20, 0, 0, 0],
        usd: 0.001_7,
        basis: Basis::Said,
        session: None,
        ending: Some((false, "Completed --message")),
    },
    Sample {
        file: "aider-0.86.2-stdout.txt",
        format: Format::Aider,
        source: OUT,
        counts: (1, 0, 0, 0),
        tokens: [1100, 20, 0, 0, 0],
        usd: 0.001_7,
        basis: Basis::Said,
        session: None,
        ending: None,
    },
];

fn read(file: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(file);
    fs::read(&path).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn entries(format: Format, source: Source, pieces: &[&[u8]]) -> Vec<Entry> {
    let mut reader = Reader::new(format, source);
    let mut entries = Vec::new();
    for piece in pieces {
        reader.feed(piece, &mut |entry| entries.push(entry));
    }
    reader.finish(&mut |entry| entries.push(entry));
    entries
}

fn sample_entries(file: &str) -> Vec<Entry> {
    let sample = SAMPLES.iter().find(|sample| sample.file == file).expect("it is in the table");
    entries(sample.format, sample.source, &[&read(file)])
}

fn tally_of(sources: &[(Source, Vec<Entry>)]) -> Tally {
    let mut tally = Tally::new(Prices::shipped(), History::Fresh);
    for (source, entries) in sources {
        entries.iter().for_each(|entry| tally.add(*source, entry));
    }
    tally
}

fn used(file: &str) -> Used {
    let sample = SAMPLES.iter().find(|sample| sample.file == file).expect("it is in the table");
    tally_of(&[(sample.source, sample_entries(file))]).used()
}

#[test]
fn every_sample_adds_up_to_what_was_worked_out_by_hand() {
    for sample in SAMPLES {
        let used = used(sample.file);
        let counts = (used.turns, used.tool_turns, used.tool_calls, used.open_tools);
        assert_eq!(counts, sample.counts, "{}", sample.file);
        let [input, output, cache_read, cache_write_5m, cache_write_1h] = sample.tokens;
        let web_searches = 0;
        let tokens =
            Tokens { input, output, cache_read, cache_write_5m, cache_write_1h, web_searches };
        assert_eq!(used.tokens, tokens, "{}", sample.file);
        assert_eq!(used.usd, sample.usd, "{}", sample.file);
        assert_eq!(basis_of(&used.basis), sample.basis, "{}", sample.file);
        assert_eq!(used.session.as_deref(), sample.session, "{}", sample.file);
        let ending = used.ending.map(|Ending { is_error, subtype }| (is_error, subtype));
        let expected = sample.ending.map(|(is_error, subtype)| (is_error, subtype.to_owned()));
        assert_eq!(ending, expected, "{}", sample.file);
        let bad = (used.broken_lines, used.too_long_lines, used.unknown, used.subagent_turns);
        assert_eq!(bad, (0, 0, 0, 0), "{}: {:?}", sample.file, used.unknown_names);
    }
}

fn basis_of(basis: &CostBasis) -> Basis {
    match basis {
        CostBasis::Unknown => Basis::Unknown,
        CostBasis::Said => Basis::Said,
        CostBasis::Priced { .. } => Basis::Priced,
        CostBasis::Dearest { model, .. } if model.is_empty() => Basis::Dearest(""),
        CostBasis::Dearest { model, .. } => {
            assert_eq!(model, "qwen3-coder-plus");
            Basis::Dearest("qwen3-coder-plus")
        }
    }
}

#[test]
fn every_sample_is_in_the_table() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    for entry in fs::read_dir(dir).expect("there are samples") {
        let name = entry.expect("it can be listed").file_name();
        assert!(SAMPLES.iter().any(|sample| name == sample.file), "{name:?}");
    }
}

#[test]
fn every_split_of_every_sample_tells_the_same() {
    for sample in SAMPLES {
        let bytes = read(sample.file);
        let whole = entries(sample.format, sample.source, &[&bytes]);
        let by_byte: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(entries(sample.format, sample.source, &by_byte), whole, "{}", sample.file);
        every_split_in_two(sample, &bytes);
    }
}

/// Lines are told one by one, so only the line matters in which the cut is.
fn every_split_in_two(sample: &Sample, bytes: &[u8]) {
    let mut reader = Reader::new(sample.format, sample.source);
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        let (mut whole, mut after) = (Vec::new(), reader.clone());
        after.feed(line, &mut |entry| whole.push(entry));
        for at in 0..line.len() {
            let (mut split, mut cut) = (Vec::new(), reader.clone());
            cut.feed(&line[..at], &mut |entry| split.push(entry));
            cut.feed(&line[at..], &mut |entry| split.push(entry));
            assert_eq!(split, whole, "{}: cut at {at} of a line", sample.file);
        }
        reader = after;
    }
}

#[test]
fn two_sources_of_one_run_are_counted_once() {
    let out = sample_entries("claude-2.1.325-ok.jsonl");
    let disk = sample_entries("claude-2.1.325-transcript-on-disk.jsonl");
    let alone = used("claude-2.1.325-ok.jsonl");
    for order in [[(OUT, out.clone()), (FILE, disk.clone())], [(FILE, disk), (OUT, out)]] {
        let both = tally_of(&order).used();
        assert_eq!((both.turns, both.tool_turns, both.tool_calls), (3, 2, 3));
        assert_eq!((both.tokens, both.usd, both.open_tools), (alone.tokens, alone.usd, 0));
    }
    // Gemini's sources name responses differently; the chat file lacks the last one.
    let both = tally_of(&[
        (OUT, sample_entries("gemini-0.61.0-ok.jsonl")),
        (FILE, sample_entries("gemini-0.61.0-chat-on-disk.jsonl")),
    ])
    .used();
    assert_eq!((both.turns, both.tool_turns, both.tool_calls), (3, 2, 3));
    // Recorded 900, and 100 * 1.25 + 1000 * 0.125 + 20 * 10 = 450 more in the total.
    assert_eq!(both.usd, 0.001_35);
    let both = tally_of(&[
        (OUT, sample_entries("copilot-1.0.102-ok.jsonl")),
        (FILE, sample_entries("copilot-1.0.102-events-on-disk.jsonl")),
    ])
    .used();
    assert_eq!((both.turns, both.tool_turns, both.tool_calls), (3, 2, 3));
    assert_eq!(both.usd, 0.003_262_5);
    // aider's log is exact, its text is rounded, and neither adds to the other.
    let both = tally_of(&[
        (OUT, sample_entries("aider-0.86.2-stdout.txt")),
        (FILE, sample_entries("aider-0.86.2-analytics-log.jsonl")),
    ])
    .used();
    assert_eq!((both.turns, both.tokens.input, both.usd), (1, 1100, 0.001_7));
}

#[test]
fn a_run_that_is_killed_is_charged_what_its_transcript_has() {
    // The transcript without its last two lines: the client was killed, and wrote no total.
    let bytes = read("claude-2.1.325-transcript-on-disk.jsonl");
    let lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    let killed = lines[..lines.len() - 2].concat();
    let used = tally_of(&[(FILE, entries(CLAUDE, FILE, &[&killed]))]).used();
    assert_eq!((used.usd, basis_of(&used.basis)), (0.002_175, Basis::Priced));
    assert_eq!((used.unconfirmed, used.models.len()), (0, 1));
    assert_eq!((used.models[0].model.as_str(), used.models[0].usd), ("claude-sonnet-5", 0.002_175));
}

#[test]
fn placeholders_are_told_apart_until_something_better_comes() {
    let stream = sample_entries("claude-2.1.325-sigterm-in-tool.jsonl");
    assert_eq!(tally_of(&[(OUT, stream)]).used().unconfirmed, 1);
    // Partial messages end with the truth: nothing is left open even before the result.
    let mut partial = sample_entries("claude-2.1.325-partial.jsonl");
    partial.retain(|entry| !matches!(entry, Entry::Total(_) | Entry::Result(_)));
    let used = tally_of(&[(OUT, partial)]).used();
    assert_eq!((used.unconfirmed, used.usd), (0, 0.000_725));
    assert_eq!(basis_of(&used.basis), Basis::Priced);
}

#[test]
fn what_the_agent_is_doing_is_told_on_the_way() {
    let standings = |file: &str| {
        let sample = SAMPLES.iter().find(|sample| sample.file == file).expect("in the table");
        let mut tally = Tally::new(Prices::shipped(), History::Fresh);
        let mut all = vec![Standing::Working];
        for entry in sample_entries(file) {
            tally.add(sample.source, &entry);
            let now = tally.used().standing;
            if all.last() != Some(&now) {
                all.push(now);
            }
        }
        all
    };
    let (working, finishing) = (Standing::Working, Standing::Finishing);
    let approval = Standing::Waiting(Waiting::Approval);
    let retrying = |attempt, delay_ms| Standing::Retrying { attempt, delay_ms };
    assert_eq!(
        standings("claude-2.1.325-retry-429.jsonl"),
        [working, retrying(1, Some(1000)), working, finishing]
    );
    assert_eq!(
        standings("claude-2.1.325-control-protocol.jsonl"),
        [working, approval, working, finishing, working, finishing, working, finishing]
    );
    assert_eq!(
        standings("claude-2.1.325-background-shell.jsonl"),
        [working, finishing, working, finishing]
    );
    let until = Some(1_794_777_099);
    assert_eq!(
        standings("claude-2.1.325-rate-limit-rejected.jsonl"),
        [working, Standing::RateLimited { until }, finishing]
    );
    let rejected = used("claude-2.1.325-rate-limit-rejected.jsonl");
    assert_eq!(rejected.rate_limited_until, until);
    assert!(rejected.rate_limited, "it has finished, and was refused all the same");
    assert!(!used("claude-2.1.325-retry-429.jsonl").rate_limited);
    assert_eq!(rejected.last_error.as_deref(), Some("api_error"));
    let codex: Vec<Standing> = (1..=5).map(|attempt| retrying(attempt, None)).collect();
    assert_eq!(standings("codex-0.166.0-429.jsonl")[1..6], codex);
    assert!(standings("codex-0.166.0-app-server.jsonl").contains(&approval));
    let warned = sample_entries("claude-2.1.325-rate-limit-warning.jsonl");
    let until = Some(1_794_777_098);
    assert!(warned.contains(&Entry::RateLimit(RateLimit::Warning { until })));
}

#[test]
fn a_sub_agent_of_codex_is_named_so_that_its_file_can_be_followed() {
    let child = "01a1e0bd-28e3-7c61-a2f1-c023d829c702".to_owned();
    let told = sample_entries("codex-0.166.0-subagent.jsonl");
    assert_eq!(told.iter().filter(|entry| **entry == Entry::Subagent(child.clone())).count(), 1);
}

#[test]
fn codex_is_priced_by_the_model_of_the_command_line_where_the_stream_names_none() {
    let mut tally = Tally::new(Prices::shipped(), History::Fresh);
    tally.assume_model("gpt-5.2-codex");
    sample_entries("codex-0.166.0-ok.jsonl").iter().for_each(|entry| tally.add(OUT, entry));
    let used = tally.used();
    // 300 * 1.75 + 60 * 14 + 3000 * 0.175 = 1890.
    assert_eq!((used.usd, basis_of(&used.basis)), (0.001_89, Basis::Priced));
}
