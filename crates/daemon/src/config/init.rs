//! The documented files `kennel init` writes. Owns their text, which is parsed by a test, and that
//! nothing is ever overwritten.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::REPOSITORY_FILE;
use crate::home::Home;

/// A repository's file, with every key.
pub const REPOSITORY_TEXT: &str = include_str!("kennel.toml");
/// The user's file, with every key.
pub const USER_TEXT: &str = include_str!("config.toml");

/// Writes a repository's file into a directory.
pub fn repository(dir: &Path) -> (PathBuf, io::Result<()>) {
    let file = dir.join(REPOSITORY_FILE);
    let written = write_new(&file, 0o644, REPOSITORY_TEXT);
    (file, written)
}

/// Writes the user's file. For nobody else to read: it may come to hold secrets.
pub fn user(home: &Home) -> (PathBuf, io::Result<()>) {
    let file = home.config_file();
    let dir = file.parent().unwrap_or(Path::new("/"));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let written = made.and_then(|()| write_new(&file, 0o600, USER_TEXT));
    (file, written)
}

fn write_new(file: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(mode).open(file)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
