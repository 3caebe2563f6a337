//! The rules of the repository, as tests. A failure names the file, the line and the rule.
//!
//! What a lint can check is left to the lints; here is what they cannot see: files, manifests,
//! words, and what must be absent. Rust sources are read with comments and literals blanked out, so
//! that no rule trips over prose.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The longest line of a Rust source, comments included.
const MAX_COLUMNS: usize = 100;

// Every file.

#[test]
fn every_rust_file_begins_with_a_module_doc() {
    let mut wrong = Vec::new();
    for source in rust_sources() {
        let first = source.text.lines().next().unwrap_or_default();
        let words = first.strip_prefix("//! ").unwrap_or_default().split_whitespace().count();
        if words < 3 {
            wrong.push(format!("{}:1: {first:?}", source.path));
        }
    }
    expect_none("the first line is `//!` and says what the file is for", &wrong);
}

#[test]
fn no_line_is_longer_than_the_page() {
    let mut wrong = Vec::new();
    for source in rust_sources() {
        for (n, line) in numbered(&source.text) {
            let columns = line.chars().count();
            if columns > MAX_COLUMNS {
                wrong.push(format!("{}:{n}: {columns} columns", source.path));
            }
        }
    }
    expect_none("a line has at most 100 columns; comments are wrapped by hand", &wrong);
}

#[test]
fn nothing_is_left_for_later() {
    let unfinished = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
    let mut wrong = Vec::new();
    for source in rust_sources() {
        for (n, line) in numbered(&source.code) {
            for word in unfinished.iter().filter(|word| line.contains(**word)) {
                wrong.push(format!("{}:{n}: {word}", source.path));
            }
        }
    }
    expect_none("no unfinished code, no debug print, no test that does not run", &wrong);
}

#[test]
fn no_file_names_a_place_on_somebodys_machine() {
    // In two parts each, or this file would break its own rule.
    let places = [concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];
    let mut wrong = Vec::new();
    for (path, text) in text_files() {
        for (n, line) in numbered(&text) {
            for place in places.iter().filter(|place| line.contains(**place)) {
                wrong.push(format!("{path}:{n}: {place}"));
            }
        }
    }
    expect_none("no absolute path of a user or a workplace in any file", &wrong);
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let mut wrong = Vec::new();
    for (path, text) in text_files().into_iter().filter(|(path, _)| path.ends_with(".md")) {
        let dir = root().join(&path).parent().expect("a file is in a directory").to_owned();
        for (n, line) in numbered(&text) {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = target.split('#').next().unwrap_or_default();
                let local = !file.is_empty() && !file.contains("://");
                if local && !dir.join(file).exists() {
                    wrong.push(format!("{path}:{n}: {target}"));
                }
            }
        }
    }
    expect_none("a relative link names a file that is there", &wrong);
}

#[test]
fn the_changelog_has_a_place_for_the_next_release() {
    let text = read("CHANGELOG.md");
    assert!(text.lines().any(|line| line == "## [Unreleased]"), "CHANGELOG.md: no [Unreleased]");
}

// Processes: who may start, signal and declare dead.

#[test]
fn unsafe_code_is_in_one_directory() {
    let mut wrong = Vec::new();
    for source in rust_sources().iter().filter(|s| !s.is_under("crates/process/src/sys/")) {
        for (n, line) in numbered(&source.code) {
            if has_word(line, "unsafe") {
                wrong.push(format!("{}:{n}: {}", source.path, line.trim()));
            }
        }
    }
    expect_none("`unsafe` only under crates/process/src/sys", &wrong);
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    let mut wrong = Vec::new();
    for source in rust_sources() {
        let raw: Vec<&str> = source.text.lines().collect();
        let code: Vec<&str> = source.code.lines().collect();
        for n in (0..code.len()).filter(|n| has_word(code[*n], "unsafe")) {
            if !is_argued(&raw, &code, n) {
                wrong.push(format!("{}:{}: {}", source.path, n + 1, raw[n].trim()));
            }
        }
    }
    expect_none("a `SAFETY:` comment stands above every `unsafe`", &wrong);
}

/// Looks upwards from an `unsafe`, over its own statement and the comment above it.
fn is_argued(raw: &[&str], code: &[&str], at: usize) -> bool {
    let argued = |line: &str| line.contains("SAFETY:") || line.contains("# Safety");
    if argued(raw[at]) {
        return true;
    }
    for n in (0..at).rev() {
        if argued(raw[n]) {
            return true;
        }
        let ends_another_statement = code[n].trim_end().ends_with([';', '{', '}', ',']);
        if ends_another_statement || raw[n].trim().is_empty() {
            return false;
        }
    }
    false
}

#[test]
fn only_the_process_crate_starts_and_signals() {
    let signals = ["libc::kill", "killpg", "kill_process", "kill_process_group", "tgkill"];
    let mut wrong = Vec::new();
    for source in rust_sources().iter().filter(|s| !s.is_under("crates/process/")) {
        for (n, line) in numbered(&source.code) {
            let starts = line.contains("Command::new") && !source.is_under("tests/");
            let signals = signals.iter().any(|s| has_word(line, s)) || calls_bare_kill(line);
            if starts || signals {
                wrong.push(format!("{}:{n}: {}", source.path, line.trim()));
            }
        }
    }
    expect_none("processes are started and signalled by kennel-process alone", &wrong);
}

/// A call of a function named `kill`, as opposed to a method or a definition of one.
fn calls_bare_kill(line: &str) -> bool {
    line.match_indices("kill(").any(|(at, _)| {
        let before = &line[..at];
        let part_of_a_name = before.ends_with(|c: char| is_word(c) || c == '.' || c == ':');
        !part_of_a_name && !before.trim_end().ends_with("fn")
    })
}

#[test]
fn nobody_chooses_a_victim_by_pattern() {
    let tools = [concat!("p", "kill"), concat!("kill", "all"), concat!("p", "grep")];
    let mut wrong = Vec::new();
    let programs: Vec<(String, String)> = rust_sources()
        .into_iter()
        .map(|s| (s.path, s.uncommented))
        .chain(text_files().into_iter().filter(|(path, text)| is_script(path, text)))
        .collect();
    for (path, text) in programs {
        for (n, line) in numbered(&text) {
            for tool in tools.iter().filter(|tool| has_word(line, tool)) {
                wrong.push(format!("{path}:{n}: {tool}"));
            }
        }
    }
    expect_none("no tool that finds processes by name, in code, in tests or in scripts", &wrong);
}

fn is_script(path: &str, text: &str) -> bool {
    let by_name = [".c", ".h", ".sh", ".yml", ".yaml"].iter().any(|end| path.ends_with(end));
    by_name || text.starts_with("#!")
}

#[test]
fn only_proof_rs_makes_a_proof() {
    let mut wrong = Vec::new();
    for source in rust_sources() {
        if source.path == "crates/process/src/proof.rs" {
            continue;
        }
        for (n, line) in numbered(&source.code) {
            if has_literal_of(line, "Proof") {
                wrong.push(format!("{}:{n}: {}", source.path, line.trim()));
            }
        }
    }
    expect_none("a `Proof` is made in crates/process/src/proof.rs and nowhere else", &wrong);
}

/// True for `Name {` unless it opens an `impl`, a definition, or a function that returns one.
fn has_literal_of(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let (before, after) = (&line[..at], line[at + name.len()..].trim_start());
        let opens = before.contains("->") || ["struct", "impl"].iter().any(|w| has_word(before, w));
        !before.ends_with(is_word) && after.starts_with('{') && !opens
    })
}

#[test]
fn evidence_is_made_only_where_the_kernel_gives_it() {
    let makers = [
        ("NoChildren(())", "crates/process/src/sys/wait.rs"),
        ("LeafRemoved(())", "crates/process/src/containment.rs"),
        ("SessionEmpty(())", "crates/process/src/cohort.rs"),
    ];
    let mut wrong = Vec::new();
    for source in rust_sources() {
        for (n, line) in numbered(&source.code) {
            for (made, file) in makers.iter().filter(|(_, file)| source.path != *file) {
                if line.contains(made) {
                    wrong.push(format!("{}:{n}: {made} belongs in {file}", source.path));
                }
            }
        }
    }
    expect_none("each kind of evidence has one file that makes it", &wrong);
}

#[test]
fn bytes_become_facts_in_few_places() {
    // Reading a record or a keeper's answer may bring back a proof that was made before; any other
    // door would let one be written by hand.
    let doors = ["record.rs", "connection.rs", "keeper/mod.rs", "keeper/run_loop.rs"];
    let mut wrong = Vec::new();
    for source in rust_sources().iter().filter(|s| s.is_under("crates/process/src/")) {
        let door = doors.iter().any(|d| source.path == format!("crates/process/src/{d}"));
        let tests_begin = source.code.find("#[cfg(test)]").unwrap_or(source.code.len());
        for (n, line) in numbered(&source.code[..tests_begin]) {
            if !door && line.contains("serde_json::from_") {
                wrong.push(format!("{}:{n}: {}", source.path, line.trim()));
            }
        }
    }
    expect_none("records and messages are parsed at the doors of kennel-process only", &wrong);
}

#[test]
fn only_the_command_gives_trust() {
    let givers = ["trust::give", "trust::revoke"];
    let mut wrong = Vec::new();
    let mut found = 0;
    for source in rust_sources().iter().filter(|s| !s.is_under("tests/")) {
        for (n, line) in numbered(&source.code) {
            if givers.iter().any(|giver| line.contains(giver)) {
                found += 1;
                if source.path != "crates/cli/src/commands/config.rs" {
                    wrong.push(format!("{}:{n}: {}", source.path, line.trim()));
                }
            }
        }
    }
    assert_eq!(found, givers.len(), "trust is not given where this test looks");
    expect_none("no request over the API can trust a repository's file", &wrong);
}

// Crates: who may know whom.

#[test]
fn crates_depend_on_each_other_as_drawn() {
    let drawn: BTreeMap<&str, &[&str]> = BTreeMap::from([
        // The last for its tests only.
        ("kennel", &["kennel-daemon", "kennel-process", "kennel-tests"][..]),
        ("kennel-daemon", &["kennel-process", "kennel-supervisor", "kennel-transcript"]),
        ("kennel-process", &[]),
        ("kennel-supervisor", &[]),
        ("kennel-transcript", &[]),
    ]);
    let mut wrong = Vec::new();
    for (package, dependencies) in workspace_dependencies() {
        if package == "kennel-tests" {
            continue;
        }
        let Some(allowed) = drawn.get(package.as_str()) else {
            wrong.push(format!("{package} is not in the drawing of ARCHITECTURE.md"));
            continue;
        };
        let ours = dependencies.iter().filter(|d| d.starts_with("kennel"));
        for dependency in ours.filter(|d| !allowed.contains(&d.as_str())) {
            wrong.push(format!("{package} depends on {dependency}"));
        }
    }
    expect_none("the edges between crates are those of ARCHITECTURE.md", &wrong);
}

#[test]
fn the_mind_depends_on_nothing_and_the_runtime_stays_with_the_daemon() {
    let mut wrong = Vec::new();
    for (package, dependencies) in workspace_dependencies() {
        for dependency in &dependencies {
            let runtime = dependency.starts_with("tokio");
            let allowed = match package.as_str() {
                "kennel-supervisor" => false,
                "kennel" | "kennel-daemon" => true,
                _ => !runtime,
            };
            if !allowed {
                wrong.push(format!("{package} depends on {dependency}"));
            }
        }
    }
    expect_none("supervisor has no dependency; tokio is for daemon and cli alone", &wrong);
}

#[test]
fn every_licence_is_on_the_closed_list() {
    let allowed = list_in("deny.toml", "allow = [");
    assert!(allowed.contains("MIT"), "deny.toml: the list of licences is not found");
    let mut wrong = Vec::new();
    for package in packages(&["--filter-platform", &host(), "--locked"]) {
        let name = text_of(&package, "name");
        match package["license"].as_str() {
            Some(terms) if licence_allows(terms, &allowed) => {}
            Some(terms) => wrong.push(format!("{name}: {terms}")),
            None => wrong.push(format!("{name}: says no licence")),
        }
    }
    expect_none("every package is under a licence that deny.toml allows", &wrong);
}

#[test]
fn no_banned_package_is_locked() {
    let deny = read("deny.toml");
    let banned: BTreeSet<&str> = quoted_after(&deny, "{ name = ").collect();
    assert!(banned.contains("openssl-sys"), "deny.toml: the list of bans is not found");
    let single = list_in("deny.toml", "deny-multiple-versions = [");
    let lock = read("Cargo.lock");
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for name in quoted_after(&lock, "name = ") {
        let twice = !seen.insert(name) && single.contains(name);
        if banned.contains(name) || twice {
            wrong.push(format!("Cargo.lock: {name}{}", if twice { " (twice)" } else { "" }));
        }
    }
    expect_none("what deny.toml bans is not in Cargo.lock", &wrong);
}

/// Whether a choice within an SPDX expression needs nothing but what is allowed.
fn licence_allows(terms: &str, allowed: &BTreeSet<String>) -> bool {
    // `/` is the old spelling of OR. No expression in use nests deeper than one pair of brackets.
    let spaced = terms.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut simple = String::new();
    let mut inner: Option<String> = None;
    for token in spaced.split_whitespace() {
        match (token, &mut inner) {
            ("(", _) => inner = Some(String::new()),
            (")", Some(open)) => {
                let answer = if either_allows(open, allowed) { "MIT" } else { "refused" };
                let _ = write!(simple, " {answer}");
                inner = None;
            }
            (_, Some(open)) => drop(write!(open, " {token}")),
            (_, None) => drop(write!(simple, " {token}")),
        }
    }
    either_allows(&simple, allowed)
}

fn either_allows(terms: &str, allowed: &BTreeSet<String>) -> bool {
    terms.split(" OR ").any(|all| all.split(" AND ").all(|one| allowed.contains(one.trim())))
}

#[test]
fn licence_expressions_are_read_as_they_are_meant() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "ISC".to_owned()]);
    for terms in ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(GPL-3.0 OR MIT) AND ISC"] {
        assert!(licence_allows(terms, &allowed), "{terms}");
    }
    for terms in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "MITX"] {
        assert!(!licence_allows(terms, &allowed), "{terms}");
    }
}

#[test]
fn a_crate_with_its_own_clippy_rules_keeps_the_shared_ones() {
    let exempt = [
        ("crates/process/clippy.toml", "Command::new"),
        ("crates/cli/clippy.toml", "std::process::exit"),
        ("tests/clippy.toml", "Command::new"),
    ];
    let shared = read("clippy.toml");
    let rules = || shared.lines().filter(|line| line.trim_start().starts_with("{ path"));
    assert!(rules().count() > 3, "clippy.toml: its rules are not found");
    let mut wrong = Vec::new();
    for (path, text) in text_files() {
        if !path.ends_with("/clippy.toml") {
            continue;
        }
        let without = exempt.iter().find(|(file, _)| *file == path).map(|(_, rule)| *rule);
        let due = rules().filter(|rule| without.is_none_or(|word| !rule.contains(word)));
        for rule in due.filter(|rule| !text.contains(*rule)) {
            wrong.push(format!("{path}: lacks {}", rule.trim()));
        }
    }
    expect_none("a local clippy.toml replaces the shared one, so it repeats its rules", &wrong);
}

// Words.

#[test]
fn public_names_use_the_words_of_the_glossary() {
    let others = [
        ("shim", "keeper"),
        ("wrapper", "keeper"),
        ("worker", "slot or run"),
        ("quota", "limit"),
        ("job", "run"),
        ("terminate", "stop"),
        ("cancel", "stop"),
        ("ticket", "story"),
    ];
    let mut wrong = Vec::new();
    for source in rust_sources() {
        for (n, line) in numbered(&source.code) {
            let Some(name) = public_name(line) else { continue };
            let words = words_of(name);
            for (word, ours) in others.iter().filter(|(word, _)| words.iter().any(|w| w == word)) {
                wrong.push(format!("{}:{n}: {name}: {word} is called {ours} here", source.path));
            }
        }
    }
    expect_none("one word for one concept, see the glossary of ARCHITECTURE.md", &wrong);
}

/// The name a line makes public: a function, a type, a constant or a module.
fn public_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split_whitespace().peekable();
    while let Some(word) = words.next() {
        match word {
            "const" if words.peek() == Some(&"fn") => {}
            "async" | "unsafe" | "extern" => {}
            "fn" | "struct" | "enum" | "trait" | "type" | "mod" | "const" | "static" => {
                let rest = words.next()?;
                return rest.split(|c: char| !is_word(c)).next();
            }
            _ => return None,
        }
    }
    None
}

/// The words in `a_name`, `A_NAME` or `AName`, in small letters.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_small = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && after_small) {
            words.push(String::new());
        }
        after_small = c.is_lowercase();
        if c != '_' {
            words.last_mut().expect("never empty").extend(c.to_lowercase());
        }
    }
    words
}

#[test]
fn every_bound_says_why_it_is_that_number() {
    let mut wrong = Vec::new();
    for source in rust_sources() {
        let raw: Vec<&str> = source.text.lines().collect();
        for (n, line) in numbered(&source.code) {
            let Some(name) = constant_name(line) else { continue };
            let bound = name.split('_').any(|part| ["BOUND", "MAX", "LIMIT"].contains(&part));
            let above = raw[..n - 1].iter().rev().find(|l| !l.trim_start().starts_with("#["));
            if bound && !above.is_some_and(|l| l.trim_start().starts_with("///")) {
                wrong.push(format!("{}:{n}: {name}", source.path));
            }
        }
    }
    expect_none("a constant that bounds something has a doc comment", &wrong);
}

fn constant_name(line: &str) -> Option<&str> {
    let (visibility, rest) = line.trim_start().split_once("const ")?;
    let visible = visibility.is_empty() || visibility.starts_with("pub");
    let name = rest.split(|c: char| !is_word(c)).next()?;
    let is_constant = rest[name.len()..].trim_start().starts_with(':');
    (visible && is_constant).then_some(name)
}

// Tests and documents keep up with the code.

#[test]
fn no_test_file_and_no_agent_is_forgotten() {
    let sources = rust_sources();
    let main = read("tests/it/main.rs");
    let mut wrong = Vec::new();
    for source in sources.iter().filter(|s| s.is_under("tests/it/")) {
        let inside = source.path.trim_start_matches("tests/it/").trim_end_matches(".rs");
        let module = inside.split('/').next().unwrap_or_default();
        let named = main.lines().any(|line| line.trim() == format!("mod {module};"));
        if module != "main" && !named {
            wrong.push(format!("{}: not in tests/it/main.rs", source.path));
        }
    }
    for (path, _) in text_files().iter().filter(|(path, _)| path.starts_with("tests/agents/")) {
        let Some(stem) = Path::new(path).file_stem().and_then(|s| s.to_str()) else { continue };
        let used = format!("{stem:?}");
        let by_a_test = sources.iter().any(|s| s.is_under("tests/") && s.text.contains(&used));
        if path.ends_with(".c") && !by_a_test {
            wrong.push(format!("{path}: no test starts it"));
        }
    }
    expect_none("every test file is compiled and every agent is used", &wrong);
}

#[test]
fn the_architecture_names_every_failpoint_and_every_file_of_the_process_crate() {
    let text = read("ARCHITECTURE.md");
    let mut wrong = Vec::new();
    for source in rust_sources().iter().filter(|s| s.is_under("crates/process/src/")) {
        let short = source.path.trim_start_matches("crates/process/src/");
        if !text.contains(&format!("`{short}`")) {
            wrong.push(format!("{}: not in the code map", source.path));
        }
        for (n, line) in numbered(&source.uncommented) {
            for name in quoted_after(line, "failpoint(") {
                if !text.contains(&format!("`{name}`")) {
                    wrong.push(format!("{}:{n}: failpoint {name}", source.path));
                }
            }
        }
    }
    expect_none("ARCHITECTURE.md draws the protocols as they are built", &wrong);
}

// Reading the repository.

/// A Rust source in three forms with the same lines and columns.
struct Source {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
    /// Without comments.
    uncommented: String,
    /// Without comments and without what is in literals.
    code: String,
}

impl Source {
    fn is_under(&self, directory: &str) -> bool {
        self.path.starts_with(directory)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn rust_sources() -> Vec<Source> {
    let sources = text_files().into_iter().filter(|(path, _)| path.ends_with(".rs"));
    let sources: Vec<Source> = sources
        .map(|(path, text)| Source {
            uncommented: blank(&text, Literals::Keep),
            code: blank(&text, Literals::Blank),
            path,
            text,
        })
        .collect();
    assert!(sources.len() > 20, "the sources are not found");
    sources
}

/// Every file of the repository that is text, but for what cargo and git keep for themselves.
fn text_files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut directories = vec![root().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("the repository can be read") {
            let entry = entry.expect("the repository can be read");
            let path: PathBuf = entry.path();
            let name = entry.file_name();
            let kind = entry.file_type().expect("a file has a type");
            if kind.is_dir() && name != "target" && name != ".git" {
                directories.push(path);
            } else if kind.is_file() {
                let short = path.strip_prefix(root()).expect("found below it").to_owned();
                let short = short.to_string_lossy().into_owned();
                files.extend(fs::read_to_string(&path).ok().map(|text| (short, text)));
            }
        }
    }
    files.sort();
    files
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Literals {
    Keep,
    Blank,
}

/// Turns comments, and what is in literals if asked, into spaces. Lines and columns stay.
fn blank(text: &str, literals: Literals) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (length, keep) = match token(&chars, at) {
            Token::Code => (1, true),
            Token::Comment(length) => (length, false),
            Token::Literal(length) => (length, literals == Literals::Keep),
        };
        let end = (at + length).min(chars.len());
        out.extend(chars[at..end].iter().map(|c| if keep || *c == '\n' { *c } else { ' ' }));
        at = end;
    }
    out
}

enum Token {
    Code,
    Comment(usize),
    Literal(usize),
}

fn token(chars: &[char], at: usize) -> Token {
    let rest = &chars[at..];
    let in_a_name = at > 0 && is_word(chars[at - 1]);
    match rest {
        ['/', '/', ..] => {
            Token::Comment(rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()))
        }
        ['/', '*', ..] => Token::Comment(block_comment(rest)),
        ['r', '"' | '#', ..] if !in_a_name => raw_string(rest, 1),
        ['b' | 'c', 'r', '"' | '#', ..] if !in_a_name => raw_string(rest, 2),
        ['"', ..] => Token::Literal(quoted(rest, '"')),
        ['\'', '\\', ..] => Token::Literal(quoted(rest, '\'')),
        ['\'', _, '\'', ..] => Token::Literal(3),
        _ => Token::Code,
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A raw string, or a raw name such as `r#type`, which is code.
fn raw_string(rest: &[char], prefix: usize) -> Token {
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&'"') {
        return Token::Code;
    }
    let closes = |at: &usize| {
        rest[*at] == '"' && rest[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes
    };
    let close = (open + 1..rest.len()).find(closes);
    Token::Literal(close.map_or(rest.len(), |close| close + 1 + hashes))
}

#[test]
fn comments_and_literals_are_told_from_code() {
    let source = "let a = \"unsafe // \\\" {\"; // unsafe\n\
                  let b = '\"'; /* un /* s */ afe */ x(r#\"y\"#);";
    let code = blank(source, Literals::Blank);
    assert!(!code.contains("unsafe") && !code.contains("afe"));
    assert!(code.contains("let b = ") && code.contains("x(") && code.ends_with(");"));
    assert_eq!(code.len(), source.len());
    assert!(blank("fn f<'a>(x: &'a str) {}", Literals::Blank).contains("<'a>(x: &'a str)"));
    assert!(blank("f(\"kept\") // gone", Literals::Keep).contains("\"kept\""));
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(n, line)| (n + 1, line))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word)
    })
}

/// Every `"text"` that directly follows `before`.
fn quoted_after<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.strip_prefix('"')?.split('"').next())
}

/// The strings in the list that begins with `head`.
fn list_in(path: &str, head: &str) -> BTreeSet<String> {
    let text = read(path);
    let list = text.split(head).nth(1).and_then(|rest| rest.split(']').next());
    let list = list.unwrap_or_else(|| panic!("{path}: there is no {head}"));
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[track_caller]
fn expect_none(rule: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{rule}; not so in {}:\n  {}", wrong.len(), wrong.join("\n  "));
}

// Asking cargo.

/// Each package of the workspace with the names of all it depends on, of every kind.
fn workspace_dependencies() -> Vec<(String, Vec<String>)> {
    let packages = packages(&["--no-deps"]).into_iter();
    let named = packages.map(|package| {
        let dependencies = package["dependencies"].as_array().expect("cargo lists them");
        let names = dependencies.iter().map(|d| text_of(d, "name")).collect();
        (text_of(&package, "name"), names)
    });
    named.collect()
}

fn packages(flags: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--format-version", "1"])
        .args(flags)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {complaint}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    all["packages"].as_array().expect("cargo lists the packages").clone()
}

/// The platform the tests run on: packages of others are not downloaded and need no licence here.
fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let text = String::from_utf8(output.stdout).expect("rustc prints text");
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("rustc names its host").to_owned()
}

fn text_of(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_else(|| panic!("cargo gives no {key}")).to_owned()
}
