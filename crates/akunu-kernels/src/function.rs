//! A kernel function, and its complete source for each compiler.

use std::fmt::Write;

/// A source file of `kernels/`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Source {
    pub name: &'static str,
    pub text: &'static str,
}

/// The source file of that name.
macro_rules! source {
    ($name:literal) => {
        $crate::Source {
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $name)),
        }
    };
}
pub(crate) use source;

/// The sources that precede those of every function.
static FIRST: [Source; 3] = [source!("dialect.h"), source!("shared.h"), source!("common.h")];

/// A kernel function. Equal functions are compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// For people, caches and profilers: `gemv_q4_0_2048x8192`. Also the symbol in the compiled module.
    pub name: String,
    /// The inline function in the sources (`BODY`) that does the work.
    pub entry: &'static str,
    /// In order, after the dialect and the common sources.
    pub sources: Vec<&'static Source>,
    /// Preprocessor constants: what `#if` tests or what sizes register arrays.
    pub variant: Vec<(&'static str, u32)>,
    /// Shapes: compile-time `#define`s on CUDA, function constants on Metal, launch arguments in the emulator.
    pub constants: Vec<(&'static str, u32)>,
    /// The names of the buffer arguments, which precede the pass.
    pub arguments: Vec<&'static str>,
}

impl Function {
    fn sources(&self, text: &mut String) {
        for source in FIRST.iter().chain(self.sources.iter().copied()) {
            let _ = writeln!(text, "#line 1 \"{}\"", source.name);
            text.push_str(source.text);
        }
    }

    fn defines(&self, text: &mut String) {
        for (name, value) in &self.variant {
            let _ = writeln!(text, "#define {name} {value}u");
        }
    }

    /// Assigns the arguments, as named by `source`, to the `Bindings` struct.
    fn bind(&self, text: &mut String, source: impl Fn(usize) -> String) {
        text.push_str("    Bindings in = {};\n");
        for (i, name) in self.arguments.iter().enumerate() {
            let _ = writeln!(text, "    in.{name} = {};", source(i));
        }
    }
}

/// The constant of functions whose registers are limited, so that this many threadgroups fit on an SM.
pub(crate) const RESIDENT: &str = "RESIDENT";

/// The complete source for NVRTC, without headers or options. Arguments of `name`: a pointer for each of `arguments`,
/// a pointer to the [`crate::Pass`], one to scratch memory, and the command's 64 bytes of parameters by value.
pub fn cuda_text(function: &Function) -> String {
    let mut text = format!("// {}\n", function.name);
    function.defines(&mut text);
    for (name, value) in &function.constants {
        let _ = writeln!(text, "#define {name} {value}u");
    }
    function.sources(&mut text);
    let is_limited = function.constants.iter().any(|(name, _)| *name == RESIDENT);
    let bounds = if is_limited { "THREADS, RESIDENT" } else { "THREADS" };
    let _ = writeln!(text, "extern \"C\" __global__ void __launch_bounds__({bounds}) {}(", function.name);
    for i in 0..function.arguments.len() {
        let _ = writeln!(text, "    u8* a{i},");
    }
    text.push_str("    Pass* pass, u8* scratch, const Params params) {\n");
    text.push_str("    extern __shared__ __align__(1024) uint4 shared[];\n");
    function.bind(&mut text, |i| format!("a{i}"));
    text.push_str("    const Place at = {blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, (u8*)shared};\n");
    let _ = writeln!(text, "    {}(in, pass, scratch, params, at);\n}}", function.entry);
    text
}

/// The entry name in every [`metal_text`], so that functions that differ only in shapes have the same text.
pub const METAL_ENTRY: &str = "launched";

/// The complete source for Metal's compiler. Buffers are [`cuda_text`]'s arguments in the same order, the parameters
/// last; threadgroup memory is index 0. Shapes are function constants, numbered in order, so functions that differ
/// only in shapes share one text.
pub fn metal_text(function: &Function) -> String {
    let mut text = String::new();
    function.defines(&mut text);
    for (i, (name, _)) in function.constants.iter().enumerate() {
        let _ = writeln!(text, "constant unsigned int {name} [[function_constant({i})]];");
        // Sources test it with `#ifdef`.
        let _ = writeln!(text, "#define {name} {name}");
    }
    function.sources(&mut text);
    let _ = writeln!(text, "kernel void {METAL_ENTRY}(");
    for i in 0..function.arguments.len() {
        let _ = writeln!(text, "    device u8* a{i} [[buffer({i})]],");
    }
    let after = function.arguments.len();
    let _ = writeln!(text, "    device Pass* pass [[buffer({after})]],");
    let _ = writeln!(text, "    device u8* scratch [[buffer({})]],", after + 1);
    let _ = writeln!(text, "    constant Params& params [[buffer({})]],", after + 2);
    text.push_str("    threadgroup u8* shared [[threadgroup(0)]],\n");
    text.push_str("    uint3 group [[threadgroup_position_in_grid]],\n");
    text.push_str("    uint in_group [[thread_index_in_threadgroup]]) {\n");
    function.bind(&mut text, |i| format!("a{i}"));
    text.push_str("    const Place at = {group.x, group.y, group.z, in_group, shared};\n");
    let _ = writeln!(text, "    {}(in, pass, scratch, params, at);\n}}", function.entry);
    text
}

/// The source for a C++ compiler, after the emulator's header. Shapes are passed at launch, in order, so functions
/// that differ only in shapes share one text.
pub fn emulated_text(function: &Function) -> String {
    let mut text = String::new();
    function.defines(&mut text);
    for (i, (name, _)) in function.constants.iter().enumerate() {
        let _ = writeln!(text, "#define {name} (emulated::constants[{i}])");
    }
    function.sources(&mut text);
    text.push_str(
        "static void emulated::body(void* const* a, u32 x, u32 y, u32 z, u32 thread, u8* shared) {\n",
    );
    function.bind(&mut text, |i| format!("(u8*)a[{i}]"));
    let after = function.arguments.len();
    let _ = writeln!(text, "    Pass* pass = (Pass*)a[{after}];");
    let _ = writeln!(text, "    u8* scratch = (u8*)a[{}];", after + 1);
    let _ = writeln!(text, "    const Params params = *(const Params*)a[{}];", after + 2);
    text.push_str("    const Place at = {x, y, z, thread, shared};\n");
    let _ = writeln!(text, "    {}(in, pass, scratch, params, at);\n}}", function.entry);
    text
}
