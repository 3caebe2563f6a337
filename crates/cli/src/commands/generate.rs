//! `kennel completions` and `kennel man`: written from the definition of the command line itself.
//!
//! Owns: nothing but the files' names. Needs no home and no daemon: packagers run it in a build.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::error::{FAILED, Failure};
use crate::output;

/// Print a shell's completions for kennel.
///
/// For bash, in ~/.bashrc: source <(kennel completions bash)
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell they are for.
    shell: Shell,
}

/// Print the manual page, or write the pages of all commands into a directory.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where to write kennel.1, kennel-run.1 and so on. It is made if it is not there.
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "kennel", &mut script);
    output::bytes(&script, io::stdout())?;
    Ok(0)
}

pub(crate) fn man(args: &ManArgs, mut command: Command) -> Result<u8, Failure> {
    command.build();
    match &args.dir {
        None => output::bytes(&page(&Man::new(command))?, io::stdout())?,
        Some(dir) => {
            fs::create_dir_all(dir).map_err(|e| failed(dir, &e))?;
            write_pages(&command, dir)?;
        }
    }
    Ok(0)
}

/// One page for the command and one for each below it, named by the words that call it.
fn write_pages(command: &Command, dir: &Path) -> Result<(), Failure> {
    let man = Man::new(command.clone());
    let path = dir.join(man.get_filename());
    fs::write(&path, page(&man)?).map_err(|e| failed(&path, &e))?;
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    below.into_iter().try_for_each(|below| write_pages(below, dir))
}

fn page(man: &Man) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    let written = man.render(&mut page);
    written.map_err(|e| Failure::new(FAILED, "internal", e.to_string()))?;
    Ok(page)
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(FAILED, "output", format!("failed to write {}: {error}", path.display()))
}
