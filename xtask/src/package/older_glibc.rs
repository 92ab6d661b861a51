//! Links what is packed for an older glibc than that of the system that it is built on.
//!
//! A program is bound to the newest version of each function that the linker finds in the C library, so one that was built on a new system
//! does not start on an old one. Here the linker finds other files in its place: libraries without code, made of the names that the system's own
//! has, each in the newest version that is not newer than [`LEAST`]. glibc keeps those versions, so what is linked runs here too. What had
//! no older version is `packaging/glibc`. A function that is newer altogether is left undefined: fatal where it is needed,
//! nothing where it is only looked for.
//!
//! It reaches rustc by `RUSTC_WORKSPACE_WRAPPER`, which cargo counts as a part of the workspace's own crates alone: wasmtime is not compiled again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::glibc::{LEAST, Version};
use crate::place::Place;
use crate::step;

/// The parts of the C library up to 2.33, by the name of the file and by that for the linker. From 2.34 on all but the first two are empty, and
/// every program needs them all the same where an older one is.
const PARTS: [(&str, &str); 6] = [
    ("libc.so.6", "libc.so"),
    ("libm.so.6", "libm.so"),
    ("libpthread.so.0", "libpthread.so"),
    ("libdl.so.2", "libdl.so"),
    ("librt.so.1", "librt.so"),
    ("libutil.so.1", "libutil.so"),
];
/// What takes the place of what no older version has: `packaging/glibc/*.c`.
const SOURCES: [&str; 2] = ["start", "newer"];
/// Has what the compiler adds to a program for thread-local variables.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// A symbol of a library of the system.
struct Symbol {
    version: String,
    kind: String,
    bytes: u64,
}

/// The program to be named in `RUSTC_WORKSPACE_WRAPPER`. None: this processor's start files and layouts are not known here.
pub fn wrapper(place: &Place) -> Result<Option<PathBuf>> {
    if !cfg!(target_arch = "x86_64") {
        eprintln!("linked for the glibc of this system: only x86-64 is linked for {LEAST}");
        return Ok(None);
    }
    let sources = place.root.join("packaging/glibc");
    // By what it is made of: cargo links anew what has another wrapper, and nothing else.
    let mut digest = Sha256::new_with_prefix(include_str!("older_glibc.rs"));
    for name in SOURCES {
        digest.update(std::fs::read(sources.join(name).with_extension("c"))?);
    }
    for (file, _) in PARTS {
        digest.update(std::fs::read(of_the_system(file)?)?);
    }
    let digest = hex::encode(digest.finalize().get(..4).unwrap_or_default());
    make(&sources, &place.work().join(format!("glibc-{LEAST}-{digest}"))).map(Some)
}

/// Where the compiler finds a library.
fn of_the_system(file: &str) -> Result<PathBuf> {
    let path = step::output(Command::new("cc").arg(format!("-print-file-name={file}")))?;
    Ok(PathBuf::from(path.trim()))
}

/// Make the libraries, the linker that uses them, and the wrapper of rustc that uses the linker.
fn make(sources: &Path, folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let mut objects = Vec::new();
    for name in SOURCES {
        let object = folder.join(format!("{name}.o"));
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-fPIC", "-fno-builtin", "-fno-stack-protector", "-Wall", "-Wextra", "-Werror", "-c", "-o"]);
        step::output(cc.arg(&object).arg(sources.join(format!("{name}.c"))))?;
        objects.push(object);
    }
    let archive = folder.join("older.a");
    let _ = std::fs::remove_file(&archive);
    step::output(Command::new("ar").arg("rcsD").arg(&archive).args(&objects))?;
    for (file, linked) in PARTS {
        let made = folder.join(file);
        library(file, folder, &made)?;
        let script = match file {
            "libc.so.6" => {
                format!("GROUP ( {} {} AS_NEEDED ( {LOADER} ) )\n", archive.display(), made.display())
            }
            _ => format!("INPUT ( {} )\n", made.display()),
        };
        std::fs::write(folder.join(linked), script)?;
    }
    let cc = step::output(Command::new("sh").args(["-c", "command -v cc"]))?;
    let at = folder.display();
    // The libraries of the system that are linked besides, as libgcc_s, may need what is newer.
    let linker = format!(
        "#!/bin/sh\nexec {} -B{at} -L{at} \"$@\" -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--allow-shlib-undefined\n",
        cc.trim()
    );
    // rustc tells by the name of a linker which options it takes.
    program(&folder.join("cc"), &linker)?;
    let wrapper = folder.join("rustc");
    program(&wrapper, &format!("#!/bin/sh\nexec \"$@\" -C linker={at}/cc\n"))?;
    Ok(wrapper)
}

/// Written as a whole and only if it is another: cargo looks at when it was changed.
fn program(path: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, text)?;
    std::fs::set_permissions(&temporary, PermissionsExt::from_mode(0o755))?;
    std::fs::rename(&temporary, path).with_context(|| format!("cannot write {}", path.display()))
}

/// A library without code that has the names of the system's `file`.
fn library(file: &str, folder: &Path, made: &Path) -> Result<()> {
    let system = of_the_system(file)?;
    let listed = step::output(Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(system))?;
    let symbols = symbols(&listed);
    let (source, versions) = (folder.join(format!("{file}.s")), folder.join(format!("{file}.versions")));
    std::fs::write(&source, assembly(&symbols))?;
    std::fs::write(&versions, script(&symbols))?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib"]).arg(format!("-Wl,-soname,{file}"));
    if !symbols.is_empty() {
        cc.arg(format!("-Wl,--version-script={}", versions.display()));
    }
    step::output(cc.arg("-o").arg(made).arg(&source)).map(drop)
}

/// The numbers of `GLIBC_2.3.4`. None: no version of what programs may use.
fn numbers(version: &str) -> Option<Vec<u32>> {
    version.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok()).collect()
}

/// The symbols in a list by `readelf --dyn-syms --wide`, each in the newest version up to [`LEAST`].
fn symbols(listed: &str) -> BTreeMap<String, Symbol> {
    let mut found: BTreeMap<String, Symbol> = BTreeMap::new();
    for line in listed.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, size, kind, _, _, section, name, ..] = fields.as_slice() else { continue };
        // `name@VERSION`, or `name@@VERSION` where it is what the linker would take.
        let Some((name, version)) = name.split_once('@') else { continue };
        let version = version.trim_start_matches('@');
        let Some(number) = numbers(version) else { continue };
        let is_old_enough = Version::parse(version).is_some_and(|number| number <= LEAST);
        let has_newer = found.get(name).is_some_and(|other| numbers(&other.version) > Some(number));
        if *section == "UND" || !is_old_enough || has_newer {
            continue;
        }
        let bytes = size.strip_prefix("0x").map_or_else(|| size.parse(), |hex| u64::from_str_radix(hex, 16));
        let symbol = Symbol { version: version.to_owned(), kind: (*kind).to_owned(), bytes: bytes.unwrap_or(0) };
        found.insert(name.to_owned(), symbol);
    }
    found
}

/// A place for each symbol, with its size where it is data.
fn assembly(symbols: &BTreeMap<String, Symbol>) -> String {
    let mut text = String::new();
    for (name, symbol) in symbols {
        let (section, kind, bytes) = match &*symbol.kind {
            "OBJECT" => (".bss", "object", symbol.bytes.max(1)),
            "TLS" => (".section .tbss,\"awT\",@nobits", "tls_object", symbol.bytes.max(1)),
            _ => (".text", "function", 1),
        };
        let _ = writeln!(
            text,
            "{section}\n.globl {name}\n.type {name}, @{kind}\n.size {name}, {bytes}\n{name}: .skip {bytes}"
        );
    }
    text
}

/// A version script: every version with its symbols.
fn script(symbols: &BTreeMap<String, Symbol>) -> String {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, symbol) in symbols {
        versions.entry(&symbol.version).or_default().push(name);
    }
    let mut text = String::new();
    for (version, names) in versions {
        let _ = writeln!(text, "{version} {{ global: {}; }};", names.join("; "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::glibc;
    use super::*;

    const LISTED: &str = "\
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND other@GLIBC_2.2.5 (2)
    57: 0000000000088f50   146 FUNC    GLOBAL DEFAULT   16 start@@GLIBC_2.34
    58: 0000000000088f50   146 FUNC    GLOBAL DEFAULT   16 start@GLIBC_2.2.5
    59: 0000000000088f50   146 FUNC    GLOBAL DEFAULT   16 wait@GLIBC_2.2.5
    60: 0000000000088f50   146 FUNC    GLOBAL DEFAULT   16 wait@@GLIBC_2.3.4
    64: 0000000000088f50   146 FUNC    GLOBAL DEFAULT   16 wait@GLIBC_2.3.3
    61: 0000000000088f50   146 FUNC    GLOBAL DEFAULT   16 newer@@GLIBC_2.30
    62: 0000000000088f50     8 OBJECT  WEAK   DEFAULT   32 environ@@GLIBC_2.2.5
    63: 0000000000088f50     8 OBJECT  GLOBAL DEFAULT   32 inner@@GLIBC_PRIVATE
";

    #[test]
    fn each_symbol_has_the_newest_version_that_is_old_enough() {
        let found = symbols(LISTED);
        let versions: Vec<_> = found.iter().map(|(name, symbol)| (&**name, &*symbol.version)).collect();
        assert_eq!(versions, [("environ", "GLIBC_2.2.5"), ("start", "GLIBC_2.2.5"), ("wait", "GLIBC_2.3.4")]);
        assert_eq!(script(&found), "GLIBC_2.2.5 { global: environ; start; };\nGLIBC_2.3.4 { global: wait; };\n");
        assert!(assembly(&found).contains(".type environ, @object\n.size environ, 8\n"));
    }

    /// Its constructors, its threads, the size of a file: what is other in an older library. The same program, linked as usual, needs a newer one.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_program_that_is_linked_so_needs_no_newer_glibc_and_runs() {
        let folder = tempfile::tempdir().unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("packaging/glibc");
        let wrapper = make(&sources, &folder.path().join("libraries")).unwrap();
        let source = folder.path().join("program.rs");
        std::fs::write(&source, include_str!("program.glibc.rs.in")).unwrap();
        let needs = |rustc: &mut Command, name: &str| {
            let program = folder.path().join(name);
            step::output(rustc.args(["--edition", "2024", "-O", "-o"]).arg(&program).arg(&source)).unwrap();
            let said = step::output(Command::new(&program).args(["one", "two"])).unwrap();
            assert_eq!(said, "constructed with 3 arguments\n4 bytes, of a thread\n[\"one\", \"two\"]\n", "{name}");
            glibc::of(&program).unwrap()
        };
        let older = needs(Command::new(wrapper).arg("rustc"), "older");
        assert!(older <= LEAST, "needs {older}");
        let usual = needs(&mut Command::new("rustc"), "as-usual");
        eprintln!("linked as usual it needs glibc {usual}, and so {older}");
    }
}
