//! Compiles every badly behaved agent in `agents/` to an executable of its own.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=agents");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let compiler = cc::Build::new().opt_level(1).get_compiler();
    let mut sources: Vec<_> = std::fs::read_dir("agents")
        .expect("agents/ is there")
        .map(|entry| entry.expect("it reads").path())
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    sources.sort();
    for source in sources {
        let stem = source.file_stem().expect("a file has a name");
        let target = Path::new(&out).join(stem);
        let status = compiler_command(&compiler).arg(&source).arg("-o").arg(&target).status();
        assert!(status.expect("a C compiler is there").success(), "{}", source.display());
    }
    println!("cargo::rustc-env=AGENTS_DIR={out}");
}

fn compiler_command(compiler: &cc::Tool) -> Command {
    let mut command = compiler.to_command();
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-D_GNU_SOURCE"]);
    command
}
