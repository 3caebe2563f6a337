//! A line without end: the memory of a reader stays within its bound.
//!
//! Alone in its file, because it looks at the memory of the whole process.

use std::fs;

use kennel_transcript::{Entry, Format, MAX_LINE_BYTES, Reader, Source};

/// Bytes of the line.
const LINE_BYTES: usize = 100 << 20;
/// What a pipe gives at once.
const CHUNK_BYTES: usize = 64 << 10;

#[test]
fn a_line_of_a_hundred_megabytes_costs_no_more_than_the_bound() {
    let mut reader = Reader::new(Format::Claude, Source::Stdout);
    let mut entries = Vec::new();
    let chunk = vec![b'x'; CHUNK_BYTES];
    let before = peak_kb();
    reader.feed(b"{\"type\":\"assistant\",\"text\":\"", &mut |entry| entries.push(entry));
    for _ in 0..LINE_BYTES / CHUNK_BYTES {
        reader.feed(&chunk, &mut |entry| entries.push(entry));
    }
    reader.feed(b"\"}\n{\"type\":\"hologram\"}\n", &mut |entry| entries.push(entry));
    let grown = peak_kb() - before;
    // A reader that doubles its memory holds the old and the new for a moment.
    let bound = 2 * MAX_LINE_BYTES as u64 / 1024 + 1024;
    assert!(grown <= bound, "{grown} kB more, {bound} allowed");
    let unknown = Entry::Unknown("hologram".to_owned());
    assert_eq!(entries, [Entry::Line, Entry::TooLong, Entry::Line, unknown]);
}

/// The most memory the process ever had.
fn peak_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has a peak");
    let number = line.split_whitespace().next().expect("it is a number");
    number.parse().expect("it is a number")
}
