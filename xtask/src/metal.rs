//! Checks the GPU kernels as Metal sources without Metal's compiler: clang implements the same rules for address spaces
//! (as OpenCL C++), and `xtask/metal` defines the other words of Metal.
//!
//! Clang is at the path in `AKUNU_CLANG`, or the system's; if `CI` is set and there is none, Zig's is downloaded from
//! PyPI into a temporary folder.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};

use crate::{fetch_package, root};

const PACKAGE: &str = "ziglang";
/// Versions of Metal: macOS 14 has the first, macOS 15 the second.
const VERSIONS: [&str; 2] = ["310", "320"];
const LANGUAGE: [&str; 6] = ["-cc1", "-triple", "spir64-unknown-unknown", "-x", "clcpp", "-cl-std=clc++2021"];

/// A valid function, so that the others are rejected only for their mistakes.
const RIGHT: &str = "
    Row row = *(const DEVICE Row*)in.rows;
    TG_ARRAY(Row, rows, 0);
    rows[LANE] = row;
    ((DEVICE Row*)in.rows)[1] = rows[2];
    store_q8(in.x, 32, 0, group_sum(params.matmul.soft_cap, (THREADGROUP f32*)at.shared, at), LANE);
    Tile sums = filled_tile(0), tile;
    HalfTile halves;
    load_tile_transposed(&tile, (const THREADGROUP f32*)at.shared, 8);
    load_tile(&halves, (const THREADGROUP u16*)at.shared, 8);
    multiply_tiles(&sums, &tile, &halves);
    store_tile(&sums, (THREADGROUP f32*)at.shared, 8);";

/// A description of the mistake, the lines of a function, and a part of clang's error.
const MISTAKES: [(&str, &str, &str); 13] = [
    (
        "threadgroup memory taken for device memory",
        "store_q8(at.shared, 32, 0, 0.0f, LANE);",
        "cannot pass pointer to address space '__local'",
    ),
    (
        "device memory taken for threadgroup memory",
        "group_sum(0.0f, (DEVICE f32*)in.x, at);",
        "cannot pass pointer to address space '__global_device'",
    ),
    (
        "a thread's own taken for device memory",
        "u8 own[64]; store_q8(own, 32, 0, 0.0f, LANE);",
        "no known conversion from '__private u8",
    ),
    (
        "a cast to another space",
        "*(DEVICE u32*)at.shared = 0;",
        "converts between mismatching address spaces",
    ),
    (
        "a pointer without a space",
        "u32* own = (u32*)at.shared; const THREAD_PTR u32* mine = own; *own = *mine;",
        "'__generic u32 *",
    ),
    (
        "a struct of either of two spaces",
        "TG_ARRAY(Row, rows, 0); Row row = {}; row = LANE == 0 ? rows[0] : row;",
        "incompatible operand types",
    ),
    ("a field where Rust has it not", "PLACE(Row, kv_len, 4);", "static assertion failed"),
    ("a double", "pass->rows = (u32)(params.matmul.soft_cap * 0.5);", "-Wdouble-promotion"),
    (
        "a tile from device memory",
        "Tile tile; load_tile(&tile, (const DEVICE f32*)in.x, 8);",
        "no matching function for call to 'load_tile'",
    ),
    (
        "a tile of f16 from f32",
        "HalfTile tile; load_tile(&tile, (const THREADGROUP f32*)at.shared, 8);",
        "no matching function for call to 'load_tile'",
    ),
    (
        "a lane's part of a tile",
        "Tile tile = filled_tile(0); ((DEVICE f32*)in.x)[0] = tile.numbers[0];",
        "is a private member",
    ),
    ("a space as a name", "const u32 thread = LANE; in.x[thread] = 0;", "expected"),
    ("a type as a name", "const u32 half = LANE; in.x[half] = 0;", "expected"),
];

/// Clang, as a program and its first arguments.
pub(crate) struct Clang(Vec<PathBuf>);

/// Finds clang, if it is installed.
pub(crate) fn clang(folder: &Path) -> Result<Option<Clang>> {
    if let Some(path) = env::var_os("AKUNU_CLANG") {
        let clang = Clang(vec![path.into()]);
        return if clang.is_there() {
            Ok(Some(clang))
        } else {
            bail!("AKUNU_CLANG: there is no clang of version 14 or later")
        };
    }
    let package = folder.join("zig");
    let zig = package.join("ziglang").join(format!("zig{}", env::consts::EXE_SUFFIX));
    let places = || [Clang(vec!["clang".into()]), Clang(vec![zig.clone(), "clang".into()])];
    let found = places().into_iter().find(Clang::is_there);
    if found.is_some() || env::var_os("CI").is_none() {
        return Ok(found);
    }
    fetch_package(PACKAGE, &package)?;
    Ok(places().into_iter().find(Clang::is_there))
}

/// Advice if there is none.
pub(crate) fn bring() -> String {
    format!(
        "no clang (14 or later); install one (`zig clang`) with `pip install {PACKAGE}`, or set AKUNU_CLANG to the path of another"
    )
}

impl Clang {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]);
        command
    }

    /// Whether it exists and supports the language, as clang has since version 14.
    fn is_there(&self) -> bool {
        let output = self.command().args(LANGUAGE).args(["-fsyntax-only", "-"]).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// Clang's errors for any of the sources, with one or the other version of Metal.
    fn complaints(&self, texts: &[PathBuf]) -> Result<Option<String>> {
        let said: Vec<Result<Option<String>>> = thread::scope(|scope| {
            let runs = VERSIONS.map(|version| scope.spawn(move || self.complaints_in(texts, version)));
            runs.into_iter().map(|run| run.join().unwrap_or_else(|_| bail!("a thread panicked"))).collect()
        });
        let said: Vec<Option<String>> = said.into_iter().collect::<Result<_>>()?;
        Ok(said.into_iter().flatten().next())
    }

    fn complaints_in(&self, texts: &[PathBuf], version: &str) -> Result<Option<String>> {
        let words = root().join("xtask/metal");
        let output = self
            .command()
            .args(LANGUAGE)
            .args(["-fsyntax-only", "-ferror-limit", "4"])
            .arg(format!("-D__METAL_VERSION__={version}"))
            .arg("-DOFFSET_OF=__builtin_offsetof")
            .args(["-Wall", "-Wdouble-promotion", "-Werror", "-Wno-unknown-attributes"])
            .args(["-Wno-unused-function", "-Wno-unused-variable", "-include"])
            .arg(words.join("language.h"))
            .arg("-I")
            .arg(&words)
            .args(texts)
            .output()
            .context("cannot start clang")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((!output.status.success()).then_some(said))
    }
}

/// Checks every *.metal of a folder, after checking that the mistakes are rejected.
pub(crate) fn check(clang: &Clang, folder: &Path) -> Result<()> {
    refuses_mistakes(clang, folder)?;
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "metal") {
            texts.push(path);
        }
    }
    texts.sort();
    let said = clang.complaints(&texts)?;
    if texts.is_empty() || said.is_some() {
        bail!("the kernels are not valid for Metal\n{}", said.unwrap_or_default());
    }
    say!("{} functions are valid for Metal; {} mistakes were rejected", texts.len(), MISTAKES.len());
    Ok(())
}

fn refuses_mistakes(clang: &Clang, folder: &Path) -> Result<()> {
    let mut dialect = String::new();
    for source in ["dialect.h", "shared.h", "common.h", "metal/tiles.h"] {
        dialect += &std::fs::read_to_string(root().join("crates/akunu-kernels/kernels").join(source))?;
    }
    let text = folder.join("mistake.txt");
    let complaints = |lines: &str| {
        std::fs::write(&text, format!("#define THREADS 64\n{dialect}\nBODY(wrong) {{\n    {lines}\n}}\n"))?;
        clang.complaints(std::slice::from_ref(&text))
    };
    if let Some(said) = complaints(RIGHT)? {
        bail!("a valid function was rejected:\n{said}");
    }
    for (what, lines, words) in MISTAKES {
        match complaints(lines)? {
            None => bail!("{what}: was not rejected"),
            Some(said) if !said.contains(words) => bail!("{what}: was rejected for another reason:\n{said}"),
            Some(_) => {}
        }
    }
    Ok(())
}
