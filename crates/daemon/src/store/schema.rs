//! The store's file before it is used: where it may be, its settings, its version.
//!
//! Owns: the migrations, forward only, each whole or not at all, after a copy of the file was made.
//! Refuses a file of a later kennel, a file of another program, and file systems on which SQLite's
//! shared memory or locks cannot be trusted.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::StoreError;

/// Every step from an empty file on. Never edited after a release: changes are further steps.
const MIGRATIONS: [&str; 4] =
    [include_str!("1.sql"), include_str!("2.sql"), include_str!("3.sql"), include_str!("4.sql")];
/// The schema this code writes.
pub(super) const SCHEMA: i64 = MIGRATIONS.len() as i64;
/// "kenl": tells the file from other programs' databases.
const APPLICATION_ID: i64 = 0x6b65_6e6c;
/// Before this, two connections at a checkpoint could corrupt a file in WAL mode.
const OLDEST_SQLITE: i32 = 3_051_003;
/// How long a reader or writer waits for the other, or for somebody's `sqlite3` shell.
const BUSY_BOUND: Duration = Duration::from_secs(5);
/// What the write-ahead log is cut down to once its content has been taken over.
const WAL_BYTES: i64 = 16 << 20;

/// File systems that are served by another machine or that cannot share memory between processes,
/// by the kernel's number for them.
const UNFIT: [(u64, &str); 17] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x7375_7245, "Coda"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x7366_746e, "ntfs3"),
    (0x564c, "NCP"),
    (0x1983_0326, "BeeGFS"),
    (0xaad7_aaea, "PanFS"),
];
/// A program serves it, and only its name says what is behind.
const FUSE: u64 = 0x6573_5546;
/// Names of such programs that reach over a network.
const UNFIT_FUSE: [&str; 8] =
    ["sshfs", "glusterfs", "s3fs", "rclone", "davfs", "gcsfuse", "ceph", "gvfs"];

/// Opens the store's file for writing, making or migrating it as needed.
pub(super) fn open_writer(path: &Path) -> Result<Connection, StoreError> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(StoreError::OldSqlite(rusqlite::version()));
    }
    refuse_unfit(path)?;
    make_private(path).map_err(StoreError::Io)?;
    let mut connection = connect(path)?;
    migrate(&mut connection, path)?;
    Ok(connection)
}

/// Opens it for reading only.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let reader = connect(path)?;
    reader.pragma_update(None, "query_only", true).map_err(StoreError::to("set up a reader"))?;
    Ok(reader)
}

/// SQLite gives its other files the permissions of the first.
fn make_private(path: &Path) -> io::Result<()> {
    File::options().append(true).create(true).mode(0o600).open(path)?;
    // An entry that is not on disk would lose a whole store to a power cut.
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let opening = StoreError::to("open the store");
    let connection = Connection::open(path).map_err(&opening)?;
    connection.busy_timeout(BUSY_BOUND).map_err(&opening)?;
    // First: the settings below are written into the file.
    refuse_foreign(&connection, path)?;
    let set = || {
        let mode = "PRAGMA journal_mode = WAL";
        let mode: String = connection.query_row(mode, [], |row| row.get(0))?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "journal_size_limit", WAL_BYTES)?;
        Ok(mode)
    };
    let mode = set().map_err(&opening)?;
    if mode != "wal" {
        return Err(StoreError::NoWal(mode));
    }
    Ok(connection)
}

/// The name of an unfit file system, if the file is, or would be, on one.
pub(crate) fn unfit_file_system(path: &Path) -> io::Result<Option<String>> {
    let dir = std::fs::canonicalize(path.parent().unwrap_or(path))?;
    let magic = rustix::fs::statfs(&dir)?.f_type as u64 & 0xffff_ffff;
    if magic == FUSE {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        return Ok(fuse_server(&mounts, &dir).and_then(|server| unfit_fuse(&server)));
    }
    Ok(unfit(magic))
}

fn unfit(magic: u64) -> Option<String> {
    UNFIT.iter().find(|(number, _)| *number == magic).map(|(_, name)| (*name).to_owned())
}

fn unfit_fuse(kind: &str) -> Option<String> {
    UNFIT_FUSE.iter().any(|name| kind.contains(name)).then(|| kind.to_owned())
}

/// The kind of the last mount that covers a directory, as `mountinfo` has it.
fn fuse_server(mounts: &str, dir: &Path) -> Option<String> {
    let mut found: Option<(usize, String)> = None;
    for line in mounts.lines() {
        let (before, after) = line.split_once(" - ")?;
        let point = Path::new(before.split(' ').nth(4)?);
        let depth = point.components().count();
        if dir.starts_with(point) && found.as_ref().is_none_or(|(deepest, _)| depth >= *deepest) {
            found = Some((depth, after.split(' ').next()?.to_owned()));
        }
    }
    found.map(|(_, kind)| kind)
}

fn refuse_unfit(path: &Path) -> Result<(), StoreError> {
    match unfit_file_system(path).map_err(StoreError::Io)? {
        Some(kind) => Err(StoreError::UnfitFileSystem { kind, path: path.to_owned() }),
        None => Ok(()),
    }
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let found = number(connection, "user_version").map_err(StoreError::to("read the schema"))?;
    if found > SCHEMA {
        return Err(StoreError::Newer { found });
    }
    if found == SCHEMA {
        return Ok(());
    }
    if found > 0 {
        back_up(connection, path, found)?;
    }
    let steps = usize::try_from(found).map_err(|_| StoreError::Foreign(path.to_owned()))?;
    let make = |connection: &mut Connection| {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        MIGRATIONS[steps..].iter().try_for_each(|step| tx.execute_batch(step))?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", SCHEMA)?;
        tx.commit()
    };
    make(connection).map_err(StoreError::to("migrate the store, which is as it was"))
}

fn refuse_foreign(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    match number(connection, "application_id") {
        Ok(APPLICATION_ID) => Ok(()),
        Ok(_) if is_empty(connection)? => Ok(()),
        Ok(_) => Err(StoreError::Foreign(path.to_owned())),
        Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            Err(StoreError::Foreign(path.to_owned()))
        }
        Err(e) => Err(StoreError::Sql("read the schema", e)),
    }
}

/// A number in the file's head.
fn number(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn is_empty(connection: &Connection) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) FROM sqlite_schema";
    let count = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    count.map(|n| n == 0).map_err(StoreError::to("read the schema"))
}

/// Where the copy from before a migration is.
pub(super) fn backup_path(path: &Path, version: i64) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".before-{}", version + 1));
    path.with_file_name(name)
}

/// A whole copy, made by SQLite itself: a copy of the file would miss what is in its log. It gets
/// its name when it is whole and on disk.
fn back_up(connection: &Connection, path: &Path, version: i64) -> Result<(), StoreError> {
    let copy = backup_path(path, version);
    let half = with_ending(&copy, ".half");
    remove_half(&half)?;
    let made = copy_into(connection, &half).and_then(|()| {
        std::fs::rename(&half, &copy).map_err(StoreError::Io)?;
        let dir = copy.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all());
        dir.map_err(StoreError::Io)
    });
    if made.is_err() {
        // What is there of it takes the room that there is too little of.
        remove_half(&half)?;
    }
    made?;
    tracing::info!("the store is migrated; a copy from before is {}", copy.display());
    Ok(())
}

fn copy_into(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    let text = to.to_str().ok_or_else(|| {
        StoreError::Io(io::Error::new(io::ErrorKind::InvalidInput, "the home's path is no text"))
    })?;
    let made = connection.execute("VACUUM INTO ?", [text]);
    made.map_err(StoreError::to(
        "copy the store before it is migrated, for which its disk needs as much room again",
    ))?;
    File::open(to).and_then(|file| file.sync_all()).map_err(StoreError::Io)
}

/// The beginning of a copy, and what SQLite keeps beside it and would take for the next one's.
fn remove_half(half: &Path) -> Result<(), StoreError> {
    remove_if_there(half)?;
    remove_if_there(&with_ending(half, "-journal"))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::Io(e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_other_machines_are_known_by_number_and_by_name() {
        assert_eq!(unfit(0x6969).as_deref(), Some("NFS"));
        for fit in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            assert_eq!(unfit(fit), None, "ext4, xfs, btrfs, tmpfs, overlayfs");
        }
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda rw\n\
            2 1 0:40 / /mnt/a rw shared:3 - fuse.sshfs a@b: rw\n\
            3 1 0:41 / /mnt/ab rw - fuse.bindfs x rw\n";
        for (dir, kind) in [
            ("/mnt/a/kennel", Some("fuse.sshfs")),
            ("/mnt/ab/kennel", Some("fuse.bindfs")),
            ("/var", Some("ext4")),
        ] {
            assert_eq!(fuse_server(mounts, Path::new(dir)).as_deref(), kind);
        }
        assert!(unfit_fuse("fuse.sshfs").is_some() && unfit_fuse("fuse.bindfs").is_none());
    }
}
