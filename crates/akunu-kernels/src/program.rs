//! A table as one function, that stays on the chip and goes through the commands by itself.
//!
//! Each command's function stands in a namespace of its own; `cuda/program.h` has the loop around them. All have groups of the same
//! number of threads ([`Chip::group`]), and one launch each.

use std::fmt::Write;

use akunu_plan::table::{MAX_BINDINGS, PARAM_BYTES};
use bytemuck::{Pod, Zeroable};

use crate::function::{DIALECT, bind, source};
use crate::{Function, Launch, Source};

static COMMAND: Source = source!("cuda/command.h");
static PROGRAM: Source = source!("cuda/program.h");

/// A command as the program reads it; `ProgramCommand` in `cuda/program.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ProgramCommand {
    /// Addresses of the function's arguments.
    pub pointers: [u64; MAX_BINDINGS],
    pub params: [u8; PARAM_BYTES],
    pub function: u32,
    pub groups: [u32; 3],
}

/// What is compiled for a table, and what of it each command runs.
#[derive(Clone, Debug)]
pub struct Program {
    /// The symbol.
    pub name: &'static str,
    pub text: String,
    pub threads: u32,
    pub shared_bytes: u32,
    /// By command.
    pub functions: Vec<u32>,
}

impl Program {
    /// `None` where the launches' groups differ in size. At least `groups_a_unit` groups share a unit of the chip, if their registers
    /// have to be fewer for it.
    pub fn new(launches: &[Launch], groups_a_unit: u32) -> Option<Program> {
        let threads = launches.first()?.threads;
        if launches.iter().any(|launch| launch.threads != threads) {
            return None;
        }
        let mut distinct: Vec<&Function> = Vec::new();
        let mut functions = Vec::with_capacity(launches.len());
        for Launch { function, .. } in launches {
            let known = distinct.iter().position(|known| *known == function);
            functions.push(known.unwrap_or(distinct.len()) as u32);
            if known.is_none() {
                distinct.push(function);
            }
        }
        Some(Program {
            name: "program",
            text: text(&distinct, threads, groups_a_unit),
            threads,
            shared_bytes: launches.iter().map(|launch| launch.shared_bytes).max()?,
            functions,
        })
    }
}

fn text(functions: &[&Function], threads: u32, groups_a_unit: u32) -> String {
    let mut text = format!("#define PROGRAM\n#define THREADS {threads}u\n");
    append(&mut text, &DIALECT);
    append(&mut text, &COMMAND);
    text.push_str("#undef THREADS\n");
    for (i, function) in functions.iter().enumerate() {
        let _ = writeln!(text, "// {}\nnamespace f{i} {{", function.name);
        let constants = || function.variant.iter().chain(&function.constants);
        for (name, value) in constants() {
            let _ = writeln!(text, "#define {name} {value}u");
        }
        function.sources.iter().for_each(|source| append(&mut text, source));
        text.push_str("}\n");
        let of_sources = function.sources.iter().flat_map(|source| macros(source.text));
        for name in constants().map(|(name, _)| *name).chain(of_sources) {
            let _ = writeln!(text, "#undef {name}");
        }
    }
    let _ = writeln!(text, "#define THREADS {threads}u\n#define GROUPS_A_UNIT {groups_a_unit}");
    let mut cases = String::from("#define EACH_FUNCTION");
    for (i, function) in functions.iter().enumerate() {
        let _ = writeln!(
            text,
            "INLINE_AS_ASKED void run{i}(const ProgramCommand* here, Pass* pass, u8* scratch, Place at) {{"
        );
        bind(&mut text, &function.arguments, |argument| format!("here->pointers[{argument}]"), "\n");
        let _ = writeln!(text, "    f{i}::{}(in, pass, scratch, here->params, at);\n}}", function.entry);
        let _ = write!(cases, " case {i}: run{i}(here, pass, scratch, at); break;");
    }
    let _ = writeln!(text, "{cases}");
    append(&mut text, &PROGRAM);
    text
}

fn append(text: &mut String, source: &Source) {
    let _ = writeln!(text, "#line 1 \"{}\"", source.name);
    text.push_str(source.text);
}

/// The names that a source defines.
fn macros(text: &str) -> impl Iterator<Item = &str> {
    let defined = text.lines().filter_map(|line| line.trim_start().strip_prefix("#define "));
    defined.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
}
