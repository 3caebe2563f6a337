//! `kennel service`: the daemon as a service of systemd for this user.
//!
//! Owns: one unit file, which it alone writes, and the words that tell how to use it. Never runs
//! systemctl: only kennel-process starts processes, and what runs on this machine at every boot is
//! for its user to switch on.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kennel_process::KEEPERS_CGROUP;
use serde::Serialize;

use crate::client::Client;
use crate::error::{FAILED, Failure, NOT_FOUND, REFUSED};
use crate::output::{self, Out, say};

const UNIT: &str = "kennel.service";
/// The first line of a unit that we wrote, and may therefore write again or remove.
const MARK: &str = "# Written by `kennel service install`.";
/// Where systemd keeps who may have services without being logged in.
const LINGER_DIR: &str = "/var/lib/systemd/linger";
/// There if systemd runs this machine.
const BOOTED: &str = "/run/systemd/system";

/// Have systemd keep the daemon up, for this user.
///
/// Not needed: the daemon starts by itself. With it, it is there from boot on, and comes back after
/// a crash before anybody asks for it.
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Install(InstallArgs),
    Uninstall(UninstallArgs),
    Status(StatusArgs),
}

/// Write the unit, and say how to switch it on.
#[derive(Debug, Args)]
struct InstallArgs {
    /// Say how to start it at once, too.
    #[arg(long)]
    now: bool,
    /// Print the unit instead of writing it.
    #[arg(long)]
    print: bool,
    /// Overwrite a unit of that name that was not written by kennel.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    place: Place,
}

/// Remove the unit. The daemon and its runs go on until you stop them.
#[derive(Debug, Args)]
struct UninstallArgs {
    /// Remove a unit that was not written by kennel.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    place: Place,
}

/// Say whether the unit is there, switched on, and up to date.
#[derive(Debug, Args)]
struct StatusArgs {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Place {
    /// Where systemd looks for this user's units; ~/.config/systemd/user if not said.
    #[arg(long, value_name = "DIR")]
    user_unit_dir: Option<PathBuf>,
}

pub(crate) fn service(args: &ServiceArgs, out: &Out) -> Result<u8, Failure> {
    match &args.what {
        What::Install(args) => install(args, out),
        What::Uninstall(args) => uninstall(args, out),
        What::Status(args) => status(args, out),
    }
}

fn install(args: &InstallArgs, out: &Out) -> Result<u8, Failure> {
    let unit = own_unit()?;
    if args.print {
        output::bytes(unit.as_bytes(), io::stdout())?;
        return Ok(0);
    }
    let path = args.place.dir()?.join(UNIT);
    let found = read(&path)?;
    if found.as_deref().is_some_and(|found| !is_ours(found)) && !args.force {
        let message = format!("{} was not written by kennel", path.display());
        return Err(Failure::new(REFUSED, "foreign_unit", message)
            .hint("`--force` overwrites it, `--print` shows what would be written"));
    }
    let changed = found.as_deref() != Some(unit.as_bytes());
    if changed {
        write_whole(&path, unit.as_bytes()).map_err(|e| failed("write", &path, &e))?;
    }
    let enable = if args.now { "enable --now" } else { "enable" };
    let commands = ["daemon-reload", enable].map(systemctl);
    let installed = Installed { unit: path.display().to_string(), changed, commands };
    out.answer(&installed, || installed.unit.clone())?;
    if !out.json {
        advise(&installed, args.now);
    }
    Ok(0)
}

/// What `install --json` answers.
#[derive(Serialize)]
struct Installed {
    unit: String,
    changed: bool,
    commands: [String; 2],
}

fn advise(installed: &Installed, now: bool) {
    if !Path::new(BOOTED).exists() {
        say("kennel: systemd does not run here; the unit is of use where it does");
        return;
    }
    say("kennel: to switch the service on, run:");
    installed.commands.iter().for_each(|command| say(&format!("  {command}")));
    if now && daemon_is_up() {
        say("kennel: a daemon is up already, and there can be one only; before that, run:");
        say("  kennel down");
    }
    if !lingers() {
        say("kennel: to have it at boot, and to keep it and its runs when you log out, run:");
        say("  loginctl enable-linger");
    }
}

fn uninstall(args: &UninstallArgs, out: &Out) -> Result<u8, Failure> {
    let dir = args.place.dir()?;
    let path = dir.join(UNIT);
    let found = read(&path)?;
    if found.as_deref().is_some_and(|found| !is_ours(found)) && !args.force {
        let message = format!("{} was not written by kennel", path.display());
        return Err(Failure::new(REFUSED, "foreign_unit", message).hint("`--force` removes it"));
    }
    // What `enable` made: it would lead nowhere.
    let wanted = wanted(&dir);
    if wanted.is_symlink() {
        fs::remove_file(&wanted).map_err(|e| failed("remove", &wanted, &e))?;
    }
    if found.is_some() {
        fs::remove_file(&path).map_err(|e| failed("remove", &path, &e))?;
    }
    let commands = ["daemon-reload", "stop"].map(systemctl);
    let removed =
        Installed { unit: path.display().to_string(), changed: found.is_some(), commands };
    out.answer(&removed, || removed.unit.clone())?;
    if !out.json && removed.changed {
        say("kennel: removed; to have systemd forget it, run:");
        removed.commands.iter().for_each(|command| say(&format!("  {command}")));
        say("kennel: runs go on under their keepers");
    } else if !out.json {
        say("kennel: there was no unit");
    }
    Ok(0)
}

/// What `status --json` answers.
#[derive(Serialize)]
struct Status {
    unit: String,
    installed: bool,
    /// Written by us, for this executable and this home.
    current: bool,
    enabled: bool,
    lingers: bool,
    daemon_up: bool,
}

fn status(args: &StatusArgs, out: &Out) -> Result<u8, Failure> {
    let dir = args.place.dir()?;
    let path = dir.join(UNIT);
    let found = read(&path)?;
    let status = Status {
        unit: path.display().to_string(),
        installed: found.is_some(),
        current: found.as_deref() == Some(own_unit()?.as_bytes()),
        enabled: wanted(&dir).is_symlink(),
        lingers: lingers(),
        daemon_up: daemon_is_up(),
    };
    out.answer(&status, || status_words(&status))?;
    Ok(if status.installed { 0 } else { NOT_FOUND })
}

fn status_words(status: &Status) -> String {
    let unit = match (status.installed, status.current) {
        (false, _) => "not installed; `kennel service install` writes it",
        (true, true) => "installed",
        (true, false) => "installed, but not as `kennel service install` would write it now",
    };
    let word = |yes, words: [&'static str; 2]| if yes { words[0] } else { words[1] };
    let lines = [
        ("unit", status.unit.as_str()),
        ("state", unit),
        ("at boot", word(status.enabled, ["yes", "no; `systemctl --user enable kennel.service`"])),
        ("lingers", word(status.lingers, ["yes", "no; `loginctl enable-linger`"])),
        ("daemon", word(status.daemon_up, ["up", "not up"])),
    ];
    lines.map(|(name, value)| format!("{name:<10} {value}")).join("\n")
}

impl Place {
    fn dir(&self) -> Result<PathBuf, Failure> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(dir) = &self.user_unit_dir {
            return Ok(dir.clone());
        }
        let config = match (set("XDG_CONFIG_HOME"), set("HOME")) {
            (Some(config), _) => PathBuf::from(config),
            (None, Some(home)) => PathBuf::from(home).join(".config"),
            (None, None) => {
                let message = "neither XDG_CONFIG_HOME nor HOME is set";
                return Err(Failure::new(FAILED, "home", message)
                    .hint("say where with `--user-unit-dir DIR`"));
            }
        };
        Ok(config.join("systemd/user"))
    }
}

/// The unit for this executable and this home.
fn own_unit() -> Result<String, Failure> {
    let own = std::env::current_exe();
    let own = own.map_err(|e| failed("find", Path::new("our own executable"), &e))?;
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    // Where the clients look for the daemon: it must not depend on what systemd's own environment
    // happens to hold.
    let home = if let Some(home) = set("KENNEL_HOME") {
        let home = std::path::absolute(&home).map_err(|e| failed("use", Path::new(&home), &e))?;
        Some(("KENNEL_HOME", home.into_os_string()))
    } else {
        set("XDG_STATE_HOME").map(|state| ("XDG_STATE_HOME", state))
    };
    Ok(unit(&own, home))
}

fn unit(executable: &Path, home: Option<(&str, OsString)>) -> String {
    let start = quoted(executable.as_os_str(), Expands::Variables);
    let home = home.map(|(name, value)| {
        let mut variable = OsString::from(format!("{name}="));
        variable.push(value);
        format!(
            "# The home of whoever installed this: clients look for the daemon there.\n\
             Environment={}\n",
            quoted(&variable, Expands::Nothing)
        )
    });
    format!(
        "{MARK}
# It is written anew by the next one: change it with `systemctl --user edit {UNIT}`.

[Unit]
Description=kennel, which owns the coding agents it runs
Documentation=man:kennel(1)

[Service]
# The daemon says when it serves, and only the daemon: what runs below it has nothing to say here.
Type=notify
NotifyAccess=main
ExecStart={start} up
{}# After a crash, not after `kennel down`: that was meant.
Restart=on-failure
# Only the daemon is ended with the service. The default kills everything in its cgroup: each update
# and each restart would kill every agent.
KillMode=process
# The cgroup below is ours: each run gets one of its own, and that is what proves it dead.
Delegate=yes
# The daemon and the keepers stand beside those cgroups: only then can the kernel itself keep limits
# on memory and processes. Ignored before systemd 254; those limits are sampled then.
DelegateSubgroup={KEEPERS_CGROUP}
# If an agent takes too much memory the kernel ends that agent. It must not end the service.
OOMPolicy=continue

[Install]
WantedBy=default.target
",
        home.unwrap_or_default()
    )
}

/// What systemd would replace in a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expands {
    Nothing,
    /// `$NAME`, in the words of a command.
    Variables,
}

/// A word as systemd reads it back: in quotes, with everything escaped that means something.
fn quoted(word: &OsStr, expands: Expands) -> String {
    let mut text = String::from("\"");
    for chunk in word.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => text.extend(['\\', c]),
                '%' => text.push_str("%%"),
                '$' if expands == Expands::Variables => text.push_str("$$"),
                c if c.is_ascii_control() => drop(write!(text, "\\x{:02x}", u32::from(c))),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text.push('"');
    text
}

/// The link that `systemctl enable` makes.
fn wanted(dir: &Path) -> PathBuf {
    dir.join("default.target.wants").join(UNIT)
}

fn systemctl(what: &str) -> String {
    match what {
        "daemon-reload" => format!("systemctl --user {what}"),
        _ => format!("systemctl --user {what} {UNIT}"),
    }
}

fn is_ours(unit: &[u8]) -> bool {
    unit.starts_with(MARK.as_bytes())
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed("read", path, &e)),
    }
}

/// Writes a file so that it is there whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = File::create_new(&new)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

fn lingers() -> bool {
    // The environment can lie about who we are; then the advice is wrong and harmless.
    let user = std::env::var_os("USER").or_else(|| std::env::var_os("LOGNAME"));
    user.is_some_and(|user| Path::new(LINGER_DIR).join(user).exists())
}

fn daemon_is_up() -> bool {
    Client::find().is_ok_and(|client| client.is_up())
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(FAILED, "unit", format!("failed to {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn words_are_quoted_so_that_systemd_reads_them_back() {
        for (word, command, variable) in [
            (&b"/usr/bin/kennel"[..], "\"/usr/bin/kennel\"", "\"/usr/bin/kennel\""),
            (b"/a b/100%/$HOME", "\"/a b/100%%/$$HOME\"", "\"/a b/100%%/$HOME\""),
            (b"q\"b\\n\n", "\"q\\\"b\\\\n\\x0a\"", "\"q\\\"b\\\\n\\x0a\""),
            (b"\xff\xc3\xa4", "\"\\xff\u{e4}\"", "\"\\xff\u{e4}\""),
        ] {
            let word = OsString::from_vec(word.to_vec());
            assert_eq!(quoted(&word, Expands::Variables), command);
            assert_eq!(quoted(&word, Expands::Nothing), variable);
        }
    }

    #[test]
    fn a_restart_of_the_service_does_not_touch_the_runs() {
        let unit = unit(Path::new("/k"), Some(("KENNEL_HOME", "/x y".into())));
        for line in [
            "ExecStart=\"/k\" up",
            "Type=notify",
            "NotifyAccess=main",
            "KillMode=process",
            "Delegate=yes",
            "DelegateSubgroup=kennel.keepers",
            "OOMPolicy=continue",
            "Restart=on-failure",
            "Environment=\"KENNEL_HOME=/x y\"",
            "WantedBy=default.target",
        ] {
            assert!(unit.lines().any(|l| l == line), "{line}\n{unit}");
        }
        assert!(is_ours(unit.as_bytes()));
    }
}
