//! The figures of the transcript readers, each beside its floor and its peer in the same run.
//!
//! `cargo run --release -p kennel-tests --no-default-features --bin bench-transcript [-- SECTION]`
//! prints a table; SECTION is `long`, `partial`, `disk` or `memory`. Ours is reader and tally
//! together; the floor looks for the ends of lines and nothing else; the peer makes a
//! `serde_json::Value` of each line. Nothing here is an assertion: machines differ, ratios tell.

#![expect(clippy::print_stdout, reason = "the table is the purpose of the program")]

use std::fmt::Write;
use std::fs;
use std::hint::black_box;

use kennel_transcript::{Format, History, Prices, Reader, Source, Tally, Used};
use rustix::time::{ClockId, clock_gettime};

/// Bytes of each stream: several times what a processor caches.
const STREAM_BYTES: usize = 128 << 20;
/// Bytes for the measurement of memory.
const FLAT_BYTES: usize = 1 << 30;
/// What a read from a pipe gives at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Rounds of each measurement, of which the best counts.
const ROUNDS: usize = 9;

fn main() {
    println!("| stream | lines | ours | floor: split lines | peer: Value per line | ours / peer |");
    println!("|---|---|---|---|---|---|");
    let only = std::env::args().nth(1);
    let wanted = |section: &str| only.as_deref().is_none_or(|only| only == section);
    if wanted("long") {
        row("Claude, long messages", &stream(long_turn), Source::Stdout);
    }
    if wanted("partial") {
        row("Claude, partial messages", &stream(partial_turn), Source::Stdout);
    }
    if wanted("disk") {
        let source = Source::File { subagent: false };
        row("Claude, transcript on disk", &stream(recorded_turn), source);
    }
    if wanted("memory") {
        println!();
        flat_memory();
    }
}

fn row(name: &str, bytes: &[u8], source: Source) {
    let ours = speed(bytes, || {
        black_box(count(bytes, source));
    });
    let floor = speed(bytes, || {
        black_box(bytes.split(|b| *b == b'\n').count());
    });
    let floor = floor.max(speed(bytes, || {
        black_box(split(bytes));
    }));
    let peer = speed(bytes, || {
        black_box(values(bytes));
    });
    let lines = split(bytes);
    let ratio = ours / peer;
    println!(
        "| {name} | {lines} | {ours:.2} GB/s | {floor:.2} GB/s | {peer:.2} GB/s | {ratio:.1} |"
    );
}

/// The best speed of some rounds, in gigabytes a second of processor time: what else the machine
/// does meanwhile is not what is measured.
fn speed(bytes: &[u8], mut once: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        let begin = processor_time();
        once();
        processor_time() - begin
    });
    bytes.len() as f64 / times.fold(f64::INFINITY, f64::min) / 1e9
}

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn count(bytes: &[u8], source: Source) -> Used {
    let mut tally = Tally::new(Prices::shipped(), History::Fresh);
    let mut reader = Reader::new(Format::Claude, source);
    for chunk in bytes.chunks(CHUNK_BYTES) {
        reader.feed(chunk, &mut |entry| tally.add(source, &entry));
    }
    reader.finish(&mut |entry| tally.add(source, &entry));
    let used = tally.used();
    assert!(used.turns > 100 && used.broken_lines == 0 && used.unknown == 0, "{used:?}");
    used
}

fn split(bytes: &[u8]) -> usize {
    bytes.chunks(CHUNK_BYTES).map(|chunk| memchr::memchr_iter(b'\n', chunk).count()).sum()
}

fn values(bytes: &[u8]) -> usize {
    let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let values = lines.map(serde_json::from_slice::<serde_json::Value>);
    values.filter(|value| value.as_ref().is_ok_and(|value| value["type"].is_string())).count()
}

/// Feeds a gigabyte, made on the way, and looks at the process's memory before and after.
fn flat_memory() {
    let before = resident_kb();
    let mut tally = Tally::new(Prices::shipped(), History::Fresh);
    let mut reader = Reader::new(Format::Claude, Source::Stdout);
    let (mut fed, mut turn, mut at_tenth) = (0, 0, 0);
    let mut text = String::new();
    while fed < FLAT_BYTES {
        text.clear();
        long_turn(&mut text, turn);
        turn += 1;
        for chunk in text.as_bytes().chunks(CHUNK_BYTES) {
            reader.feed(chunk, &mut |entry| tally.add(Source::Stdout, &entry));
        }
        fed += text.len();
        if at_tenth == 0 && fed > FLAT_BYTES / 10 {
            at_tenth = resident_kb();
        }
    }
    let after = resident_kb();
    let mut line = Reader::new(Format::Claude, Source::Stdout);
    let mut skipped = 0;
    let piece = vec![b'x'; CHUNK_BYTES];
    line.feed(b"{\"type\":\"assistant\",\"text\":\"", &mut |_| {});
    for _ in 0..FLAT_BYTES / CHUNK_BYTES {
        line.feed(&piece, &mut |_| skipped += 1);
    }
    let one_line = resident_kb();
    println!(
        "- Memory of reader and tally over 1 GiB, {turn} turns: {before} kB before, {at_tenth} kB"
    );
    println!("  after a tenth, {after} kB at the end; after a line of 1 GiB {one_line} kB.");
    black_box((tally.used(), skipped));
}

fn resident_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn stream(turn: fn(&mut String, usize)) -> Vec<u8> {
    let mut text = String::with_capacity(STREAM_BYTES + (1 << 20));
    let mut n = 0;
    while text.len() < STREAM_BYTES {
        turn(&mut text, n);
        n += 1;
    }
    text.into_bytes()
}

const USAGE: &str = concat!(
    r#""usage":{"input_tokens":100,"cache_creation_input_tokens":50,"#,
    r#""cache_read_input_tokens":1000,"cache_creation":{"ephemeral_5m_input_tokens":50,"#,
    r#""ephemeral_1h_input_tokens":0},"output_tokens":1,"service_tier":"standard"}"#,
);
const SESSION: &str = "3a6861f1-d6ca-496f-bb92-7fe44e887adf";

/// Source code as a model writes it into JSON: a line of 40 to 60 characters, then an escape, and
/// some quotes.
fn code(lines: usize, seed: usize) -> String {
    let mut text = String::new();
    for n in 0..lines {
        let k = (seed * 31 + n * 7) % 13;
        let _ = write!(text, "    let value_{k} = compute(&input, {n})?; // step {seed}\\n");
        if n % 4 == 0 {
            text.push_str("    println!(\\\"the value is {value}\\\");\\n");
        }
    }
    text
}

/// A line that is written over several here, to fit the page.
fn push_line(out: &mut String, text: &str) {
    out.extend(text.lines().map(str::trim_start));
    out.push('\n');
}

/// A response that writes a file of some 24 kB, and the tool's result of the same size.
fn long_turn(out: &mut String, n: usize) {
    let code = code(400, n);
    push_line(
        out,
        &format!(
            r#"{{"type":"assistant","message":{{"id":"msg_{n}","type":"message","role":"assistant",
        "model":"claude-sonnet-5","content":[{{"type":"text","text":"{code}"}}],
        "stop_reason":null,{USAGE},"context_management":null}},"parent_tool_use_id":null,
        "session_id":"{SESSION}","uuid":"9167813d-af86-4494-9097-4bfe89c7f3d3",
        "request_id":"req_{n}"}}"#
        ),
    );
    push_line(
        out,
        &format!(
            r#"{{"type":"assistant","message":{{"id":"msg_{n}","type":"message","role":"assistant",
        "model":"claude-sonnet-5","content":[{{"type":"tool_use","id":"toolu_{n}",
        "name":"Write","input":{{"file_path":"/srv/a.rs","content":"{code}"}}}}],
        "stop_reason":null,{USAGE},"context_management":null}},"parent_tool_use_id":null,
        "session_id":"{SESSION}","uuid":"9167813d-af86-4494-9097-4bfe89c7f3d3",
        "request_id":"req_{n}"}}"#
        ),
    );
    push_line(
        out,
        &format!(
            r#"{{"type":"user","message":{{"role":"user","content":[{{"tool_use_id":"toolu_{n}",
        "type":"tool_result","content":"{code}","is_error":false}}]}},"parent_tool_use_id":null,
        "session_id":"{SESSION}","uuid":"09637f5d-24c4-4fac-a90b-6155fe135201",
        "tool_use_result":{{"stdout":"{code}","stderr":"","interrupted":false}}}}"#
        ),
    );
}

/// The same in the form the client keeps on disk.
fn recorded_turn(out: &mut String, n: usize) {
    let code = code(100, n);
    push_line(
        out,
        &format!(
            r#"{{"parentUuid":"94bb4056-67e5-4e24-94aa-eb07d2cb92aa","isSidechain":false,"message":
        {{"id":"msg_{n}","type":"message","role":"assistant","model":"claude-sonnet-5",
        "content":[{{"type":"tool_use","id":"toolu_{n}","name":"Write","input":
        {{"content":"{code}"}}}}],"stop_reason":"tool_use",{USAGE}}},"requestId":"req_{n}",
        "type":"assistant","uuid":"b7892b91-66b7-4a32-8974-c1e6ce0f7c93",
        "timestamp":"2026-11-15T19:24:19.957Z","cwd":"/srv","sessionId":"{SESSION}",
        "version":"2.1.325","gitBranch":"HEAD"}}"#
        ),
    );
    push_line(
        out,
        &format!(
            r#"{{"parentUuid":"94bb4056-67e5-4e24-94aa-eb07d2cb92aa","isSidechain":false,
        "type":"user","message":{{"role":"user","content":[{{"tool_use_id":"toolu_{n}",
        "type":"tool_result",
        "content":"{code}"}}]}},"uuid":"c66805cc-3152-4af7-92d7-e52811672901",
        "timestamp":"2026-11-15T19:24:19.980Z","toolUseResult":{{"stdout":"{code}"}},
        "cwd":"/srv","sessionId":"{SESSION}","version":"2.1.325"}}"#
        ),
    );
}

/// A response in pieces of a few words, as they come with partial messages.
fn partial_turn(out: &mut String, n: usize) {
    let tail = format!(
        r#""session_id":"{SESSION}","parent_tool_use_id":null,
        "uuid":"c001de17-8504-4a8f-9190-97e261e4abeb","api_message_id":"msg_{n}""#
    );
    push_line(
        out,
        &format!(
            r#"{{"type":"stream_event","event":{{"type":"message_start","message":{{"id":"msg_{n}",
        "type":"message","role":"assistant","model":"claude-sonnet-5","content":[],{USAGE}}}}},
        {tail}}}"#
        ),
    );
    for piece in 0..200 {
        push_line(
            out,
            &format!(
                r#"{{"type":"stream_event","event":{{"type":"content_block_delta","index":0,"delta":
            {{"type":"text_delta","text":" and then the {piece} next words\n"}}}},{tail}}}"#
            ),
        );
    }
    push_line(
        out,
        &format!(
            r#"{{"type":"assistant","message":{{"id":"msg_{n}","type":"message","role":"assistant",
        "model":"claude-sonnet-5","content":[{{"type":"text","text":"{}"}}],{USAGE}}},
        "parent_tool_use_id":null,"session_id":"{SESSION}","request_id":"req_{n}"}}"#,
            code(60, n)
        ),
    );
    push_line(
        out,
        &format!(
            r#"{{"type":"stream_event","event":{{"type":"message_delta","delta":
        {{"stop_reason":"end_turn"}},{USAGE}}},{tail}}}"#
        ),
    );
}
