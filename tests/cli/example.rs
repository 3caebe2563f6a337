//! The example that the README runs, as it stands in the repository.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::home::{Home, Said};

#[test]
fn five_stories_of_the_example_flow_to_done_and_nothing_is_left() {
    let home = Home::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pipeline/run");
    let mut command = Command::new("sh");
    command.arg(script).env("KENNEL", env!("CARGO_BIN_EXE_kennel")).env("TMPDIR", home.path());
    let said = Said::of(&command.output().expect("it can be run"));
    assert_eq!(said.code, 0, "{said:?}");
    for story in ["goodbye", "hello", "index", "readme", "thanks"] {
        let done = format!("{story}: merge -> done");
        assert!(said.out.lines().any(|line| line == done), "no {done:?} in {said:?}");
    }
    assert!(said.out.contains("goodbye: retry 1"), "its gate never failed: {said:?}");
    let left = fs::read_dir(home.path()).expect("it is there").flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().contains("pipeline"));
    assert_eq!(left.count(), 0, "the scratch directory is left");
}
