//! Input that is broken, strange or meant to do harm: it is counted as such and nothing else
//! happens.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kennel_transcript::{
    Entry, Format, History, MAX_LINE_BYTES, Prices, Reader, Source, Tally, Used,
};

const SOURCES: [Source; 3] =
    [Source::Stdout, Source::File { subagent: false }, Source::File { subagent: true }];

/// How long the fuzzer runs, so that a set of tests has a known duration.
const FUZZ_TIME: Duration = Duration::from_secs(2);
/// And how often at least, however slow the machine: each of ten readers has so many tenths.
const LEAST_ROUNDS: u64 = 400;

fn used(format: Format, source: Source, bytes: &[u8]) -> Used {
    let mut tally = Tally::new(Prices::shipped(), History::Fresh);
    let mut reader = Reader::new(format, source);
    reader.feed(bytes, &mut |entry| tally.add(source, &entry));
    reader.finish(&mut |entry| tally.add(source, &entry));
    tally.used()
}

fn claude(bytes: &[u8]) -> Used {
    used(Format::Claude, Source::Stdout, bytes)
}

const TURN: &str = concat!(
    r#"{"type":"assistant","message":{"id":"m","model":"claude-sonnet-5","#,
    r#""content":[{"type":"tool_use","id":"t","name":"Bash"}],"usage":{"input_tokens":100,"#,
    r#""output_tokens":1}}}"#,
);

#[test]
fn broken_lines_are_counted_and_the_next_is_read() {
    for broken in ["{", "{}}{", r#"{"type":"#, r#"{"type":"assistant""#, "{\"a\":\u{1}}", "{nope}"]
    {
        let used = claude(format!("{broken}\n{TURN}\n").as_bytes());
        assert_eq!((used.turns, used.broken_lines, used.lines), (1, 1, 2), "{broken}");
    }
}

#[test]
fn a_torn_line_is_broken_and_what_is_inside_it_does_not_count() {
    for at in 1..TURN.len() {
        let used = claude(&TURN.as_bytes()[..at]);
        assert_eq!((used.turns, used.tool_calls, used.broken_lines), (0, 0, 1), "cut at {at}");
    }
}

#[test]
fn text_around_an_object_is_passed_over() {
    for line in [
        format!("Yes, what would you like?{TURN}"),
        format!("  \t{TURN}\r"),
        format!("\u{1b}[?25l{TURN}"),
        format!("\u{feff}{TURN} and more"),
        format!("fn main() {{ }} {TURN}"),
        format!("{{}}{TURN}"),
    ] {
        assert_eq!((claude(line.as_bytes()).turns, claude(line.as_bytes()).broken_lines), (1, 0));
    }
    let used = claude(b"just text\n\n   \n[1,2]\n\"x\"\n42\n");
    assert_eq!((used.lines, used.plain_lines, used.broken_lines), (6, 4, 0));
    // Braces without end must not take quadratic time.
    let braces = "x{".repeat(MAX_LINE_BYTES / 2 - 1);
    assert_eq!(claude(braces.as_bytes()).broken_lines, 1);
}

#[test]
fn keys_may_come_in_any_order_and_twice_is_broken() {
    let line = concat!(
        r#"{"message":{"usage":{"output_tokens":1,"input_tokens":100},"content":[{"name":"Bash","#,
        r#""id":"t","type":"tool_use"}],"model":"claude-sonnet-5","id":"m"},"type":"assistant"}"#,
    );
    let (one, other) = (claude(TURN.as_bytes()), claude(line.as_bytes()));
    assert_eq!(one, other);
    let twice = r#"{"type":"assistant","type":"user"}"#;
    assert_eq!(claude(twice.as_bytes()).broken_lines, 1);
}

#[test]
fn unknown_kinds_are_counted_by_name() {
    let text = r#"{"type":"hologram"}
{"type":"system","subtype":"dreamt"}
{"type":"hologram"}
{"neither":1}
{"type":7}"#;
    let used = claude(text.as_bytes());
    assert_eq!((used.unknown, used.broken_lines), (5, 0));
    assert_eq!(used.unknown_names, ["hologram", "system/dreamt", ""]);
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Aider) {
        assert_eq!(used_kinds(format), 1, "{format}");
    }
}

fn used_kinds(format: Format) -> u64 {
    used(format, Source::Stdout, br#"{"type":"hologram","event":""}"#).unknown
}

#[test]
fn what_is_no_utf8_is_broken_only_where_it_is_needed() {
    let mut ignored = TURN.replace("Bash", "Bash\",\"input\":\"?").into_bytes();
    let at = ignored.iter().position(|b| *b == b'?').expect("it was put there");
    ignored[at] = 0xff;
    assert_eq!((claude(&ignored).turns, claude(&ignored).broken_lines), (1, 0));
    let mut needed = TURN.as_bytes().to_vec();
    let at = needed.windows(3).position(|w| w == b"\"m\"").expect("the id is there");
    needed[at + 1] = 0xff;
    assert_eq!((claude(&needed).turns, claude(&needed).broken_lines), (0, 1));
}

#[test]
fn nesting_of_any_depth_is_passed_over() {
    for depth in [200, 100_000, 1_000_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let inner = if open == "[" { "" } else { "1" };
            let (front, back) = (open.repeat(depth), close.repeat(depth));
            let deep = format!(r#"{{"x":{front}{inner}{back},{}"#, &TURN[1..]);
            assert_eq!(claude(deep.as_bytes()).turns, 1, "{depth} {open}");
            let torn = format!(r#"{{"x":{front}"#);
            assert_eq!(claude(torn.as_bytes()).broken_lines, 1, "{depth} {open}");
            // And where something is expected.
            let wrong = format!(r#"{{"type":"assistant","message":{front}{inner}{back}}}"#);
            assert!(claude(wrong.as_bytes()).lines == 1, "{depth} {open}");
        }
    }
}

#[test]
fn a_line_is_read_up_to_the_bound_and_skipped_beyond_it() {
    for (over, turns, too_long) in [(0, 2, 0), (1, 1, 1)] {
        let padding = "x".repeat(MAX_LINE_BYTES + over - TURN.len() - r#""x":"","#.len());
        let long = format!(r#"{{"x":"{padding}",{}"#, &TURN[1..]);
        assert_eq!(long.len(), MAX_LINE_BYTES + over);
        let text = format!("{long}\n{}\n", TURN.replace("\"m\"", "\"m2\""));
        for chunk in [text.len(), 65_536, 4097] {
            let mut tally = Tally::new(Prices::shipped(), History::Fresh);
            let mut reader = Reader::new(Format::Claude, Source::Stdout);
            for piece in text.as_bytes().chunks(chunk) {
                reader.feed(piece, &mut |entry| tally.add(Source::Stdout, &entry));
            }
            let used = tally.used();
            assert_eq!((used.turns, used.too_long_lines, used.lines), (turns, too_long, 2));
        }
    }
}

#[test]
fn names_of_any_length_are_cut() {
    let name = "ä".repeat(100_000);
    let mut entries = Vec::new();
    let line = format!(r#"{{"type":"{name}","session_id":"{name}"}}"#);
    let mut reader = Reader::new(Format::Claude, Source::Stdout);
    reader.feed(format!("{line}\n{line}\n").as_bytes(), &mut |entry| entries.push(entry));
    let cut = "ä".repeat(128);
    let expected = [
        Entry::Line,
        Entry::Session(cut.clone()),
        Entry::Unknown(cut.clone()),
        Entry::Line,
        Entry::Unknown(cut),
    ];
    assert_eq!(entries, expected);
}

#[test]
fn numbers_of_any_size_are_counted_without_overflow() {
    let usage = |at: usize, n: &str| TURN.replace("100", n).replace("\"m\"", &format!("\"m{at}\""));
    let numbers = ["18446744073709551615", "1e300", "99999999999999999999999", "-5", "\"7\"", "[]"];
    let text: Vec<String> = numbers.iter().enumerate().map(|(at, n)| usage(at, n)).collect();
    let used = claude(text.join("\n").as_bytes());
    assert_eq!((used.turns, used.tokens.input, used.broken_lines), (6, u64::MAX, 0));
    assert!(used.usd.is_finite());
    let most = numbers[0];
    let thought = format!(r#""input":{most},"output":{most},"thoughts":{most},"total":{most}"#);
    let line = format!(r#"{{"type":"gemini","id":"m","tokens":{{{thought}}}}}"#);
    let disk = crate::used(Format::Gemini, Source::File { subagent: false }, line.as_bytes());
    assert_eq!(disk.tokens.output, u64::MAX);
    let reasoned =
        format!(r#"{{"messageID":"m","tokens":{{"output":{most},"reasoning":{most}}}}}"#);
    let line = format!(r#"{{"type":"step_finish","part":{reasoned}}}"#);
    assert_eq!(
        crate::used(Format::Opencode, Source::Stdout, line.as_bytes()).tokens.output,
        u64::MAX
    );
    for usd in ["-1", "1e308", "null", "\"x\""] {
        let line = format!(r#"{{"type":"result","total_cost_usd":{usd}}}"#);
        let used = claude(line.as_bytes());
        assert!(used.usd >= 0.0 && used.usd.is_finite(), "{usd}");
    }
}

/// Small, seeded and good enough: xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }
}

/// What readers look for, to be put where it does not belong.
const WORDS: &[&str] = &[
    "null",
    "true",
    "-1",
    "1e999",
    "18446744073709551616",
    "\"\"",
    "[]",
    "{}",
    "{",
    "}",
    "[",
    "\"",
    "\\u0000",
    "\\ud800",
    "\n",
    "\r\n",
    "{\"type\":",
    "\"assistant\"",
    "\"tool_use\"",
    "\"id\":",
    "\"usage\":",
    "\"message\":",
    ",",
    ":",
    "\u{0}",
    "\u{7f}",
];

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        let length = random.below(40).min(bytes.len() - at);
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] = random.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..at + length)),
            3 => {
                let piece = bytes[at..at + length].to_vec();
                let to = random.below(bytes.len() + 1);
                drop(bytes.splice(to..to, piece));
            }
            4 => {
                let word = WORDS[random.below(WORDS.len())];
                drop(bytes.splice(at..at + length.min(4), word.bytes()));
            }
            5 => bytes.truncate(at.max(bytes.len() / 2)),
            _ => {
                let noise: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
                drop(bytes.splice(at..at, noise));
            }
        }
    }
}

/// Feeds in random pieces, to two readers in different ones, and compares.
fn try_out(random: &mut Random, format: Format, source: Source, bytes: &[u8]) {
    let mut entries: [Vec<Entry>; 2] = Default::default();
    for told in &mut entries {
        let mut reader = Reader::new(format, source);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + random.below(rest.len().min(3000)));
            reader.feed(piece, &mut |entry| told.push(entry));
            rest = after;
        }
        reader.finish(&mut |entry| told.push(entry));
    }
    assert_eq!(entries[0], entries[1]);
    let mut tally = Tally::new(Prices::shipped(), History::Resumed);
    for entry in &entries[0] {
        tally.add(source, entry);
    }
    let used = tally.used();
    assert!(used.tool_turns <= used.turns && used.open_tools <= used.tool_calls, "{used:?}");
    assert!(used.usd >= 0.0 && used.usd.is_finite(), "{used:?}");
    let lines = bytes.iter().filter(|b| **b == b'\n').count() as u64;
    assert!((lines..=lines + 1).contains(&used.lines), "{} of {lines}", used.lines);
}

/// Streams to begin with: those of real clients, and for clients that have none what their
/// documents show.
fn seeds_of(format: Format) -> Vec<Vec<u8>> {
    let documented: &[&str] = match format {
        Format::Amp => &[
            r#"{"type":"system","subtype":"init","session_id":"T-1"}"#,
            r#"{"type":"assistant","session_id":"T-1","message":{"content":[{"type":"tool_use","#,
            r#""id":"t1","name":"Bash"}],"usage":{"input_tokens":100,"output_tokens":20}}}"#,
            r#"{"type":"result","subtype":"success","is_error":false,"session_id":"T-1"}"#,
        ],
        Format::Cursor => &[
            r#"{"type":"system","subtype":"init","session_id":"C","model":"Auto"}"#,
            r#"{"type":"assistant","message":{"role":"assistant"},"session_id":"C"}"#,
            r#"{"type":"tool_call","subtype":"started","call_id":"c1","tool_call":{"x":{}}}"#,
            r#"{"type":"result","subtype":"success","is_error":false,"session_id":"C"}"#,
        ],
        Format::Claude
        | Format::Codex
        | Format::Gemini
        | Format::Opencode
        | Format::Qwen
        | Format::Copilot
        | Format::Goose
        | Format::Aider => &[],
    };
    if !documented.is_empty() {
        return vec![documented.join("\n").into_bytes()];
    }
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/samples");
    let all = fs::read_dir(dir).expect("there are samples");
    let paths = all.map(|entry| entry.expect("it can be listed").path());
    let front = format!("{format}-");
    let is_own = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&front))
    };
    let mut paths: Vec<PathBuf> = paths.filter(is_own).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("it can be read")).collect()
}

/// One round: a stream of one client's, changed, for its own reader or, at times, for another's.
fn round(seed: u64, own: Format, streams: &[Vec<u8>]) {
    let mut random = Random(seed);
    let mut bytes = streams[random.below(streams.len())].clone();
    mutate(&mut random, &mut bytes);
    let is_strange = random.below(4) == 0;
    let format = if is_strange { Format::ALL[random.below(Format::ALL.len())] } else { own };
    let source = SOURCES[random.below(SOURCES.len())];
    try_out(&mut random, format, source, &bytes);
}

/// Names one round, to run it again alone: a client and a number, as they were told.
const SEED: &str = "KENNEL_FUZZ_SEED";

#[test]
fn mutated_streams_of_every_client_never_do_harm() {
    let seeds: Vec<(Format, Vec<Vec<u8>>)> =
        Format::ALL.into_iter().map(|format| (format, seeds_of(format))).collect();
    assert!(seeds.iter().all(|(_, streams)| !streams.is_empty()), "every reader has something");
    if let Some((format, seed)) = std::env::var(SEED).ok().and_then(|told| {
        let (format, seed) = told.split_once(':')?;
        Some((format.parse::<Format>().ok()?, seed.parse().ok()?))
    }) {
        return round(seed, format, &seeds_of(format));
    }
    let (begin, mut rounds) = (Instant::now(), 0_u64);
    while begin.elapsed() < FUZZ_TIME || rounds < LEAST_ROUNDS {
        // Each reader in turn, and each round by a number of its own.
        let (format, streams) = &seeds[rounds as usize % seeds.len()];
        let seed = Random(0x9e37_79b9_7f4a_7c15 ^ (rounds + 1).wrapping_mul(0x2545_f491)).next();
        let harm = std::panic::catch_unwind(|| round(seed, *format, streams));
        assert!(harm.is_ok(), "round {rounds} did harm; run it alone with {SEED}={format}:{seed}");
        rounds += 1;
    }
}

#[test]
fn noise_never_does_harm() {
    let mut random = Random(1);
    for round in 0..2000 {
        let noise: Vec<u8> = (0..random.below(400)).map(|_| random.next() as u8).collect();
        let format = Format::ALL[round % Format::ALL.len()];
        try_out(&mut random, format, SOURCES[round % SOURCES.len()], &noise);
    }
}
