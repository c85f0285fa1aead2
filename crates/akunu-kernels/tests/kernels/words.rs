//! Finds what only Metal's compiler would reject: reserved words, and pointers without an address space.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;

/// Words that are reserved in Metal, and C++ words that Metal lacks.
const RESERVED: &str = "
    access array bfloat constant depth2d depth2d_array depthcube device double dynamic_cast explicit fragment
    function_constant goto half imageblock kernel mesh namespace new noexcept object_data patch_control_point ptrdiff_t
    quadgroup_barrier ray_data register sampler size_t ssize_t stitchable texture1d texture2d texture2d_array texture3d
    texture_buffer texturecube thread thread_local threadgroup threadgroup_imageblock throw try catch typeid uchar uint ulong
    ushort using vertex virtual visible visible_function_table vec matrix_type delete long short char int unsigned signed float
    atomic atomic_int atomic_uint atomic_bool atomic_ulong atomic_float
    bool2 bool3 bool4 char2 char3 char4 uchar2 uchar3 uchar4 short2 short3 short4 ushort2 ushort3 ushort4 int2 int3 int4 uint2 uint3
    uint4 long2 long3 long4 ulong2 ulong3 ulong4 half2 half3 half4 float2 float3 float4 bfloat2 bfloat3 bfloat4
    packed_char4 packed_half2 packed_half4 packed_float2 packed_float3 packed_float4 packed_uint2 packed_uint4
    half2x2 half3x3 half4x4 float2x2 float3x3 float4x4 simdgroup_matrix simdgroup_float8x8 simdgroup_half8x8";

/// Names from `using namespace metal`: no function, struct or macro of the dialect may have these names; a variable
/// may.
const LIBRARY: &str = "
    abs absdiff acos acosh addsat all any as_type asin asinh atan atan2 atanh ceil clamp clz copysign cos cosh cospi cross ctz
    degrees determinant dfdx dfdy discard_fragment distance distance_squared divide dot exp exp10 exp2 extract_bits fabs
    faceforward fast fdim floor fma fmax fmax3 fmedian3 fmin fmin3 fmod fract frexp fwidth hadd ilogb insert_bits isfinite isinf
    isnan isnormal isordered isunordered ldexp length length_squared log log10 log2 mad24 madhi madsat max max3 median3
    mem_flags min min3 mix modf mul24 mulhi nextafter normalize popcount pow powr precise radians reflect refract reverse_bits rhadd rint
    rotate round rsqrt saturate select sign signbit simd_all simd_any simd_ballot simd_broadcast simd_is_first simd_max simd_min
    simd_prefix_exclusive_sum simd_product simd_shuffle simd_shuffle_down simd_shuffle_up simd_shuffle_xor simd_sum
    simdgroup_barrier simdgroup_load simdgroup_multiply simdgroup_store sin sincos sinh sinpi smoothstep sqrt step subsat tan
    tanh tanpi threadgroup_barrier transpose trunc unpack_half2x16_to_float zero
    FLT_EPSILON FLT_MAX FLT_MIN HALF_MAX HALF_MIN HUGE_VALF INFINITY INT_MAX INT_MIN MAXFLOAT M_E_F M_PI_F METAL_FUNC NAN UINT_MAX";

const SPACES: [&str; 4] = ["DEVICE", "THREADGROUP", "THREAD_PTR", "INPUT"];
const NUMBERS: [&str; 12] =
    ["u8", "u16", "u32", "u64", "i8", "i32", "f32", "u32x2", "u32x4", "f32x4", "bool", "void"];

fn words(list: &'static str) -> BTreeSet<&'static str> {
    list.split_whitespace().collect()
}

/// The tokens of a text (names, numbers and single characters), without its comments.
fn tokens(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut tokens = Vec::new();
    for mut rest in lines.map(str::trim_start) {
        while let Some(first) = rest.chars().next() {
            let name = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let (token, after) = rest.split_at(if name == 0 { first.len_utf8() } else { name });
            tokens.push(token);
            rest = after.trim_start();
        }
    }
    tokens
}

/// Names with file scope: `struct NAME`, `#define NAME`, `INLINE TYPE NAME(`, `BODY(NAME)`.
fn names<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (i, pair) in tokens.windows(2).enumerate() {
        match pair[0] {
            "struct" | "define" => names.push(pair[1]),
            "INLINE" => {
                let before = tokens[i..].iter().position(|token| *token == "(");
                names.extend(before.map(|open| tokens[i + open - 1]));
            }
            "BODY" => names.extend(tokens.get(i + 2)),
            _ => {}
        }
    }
    names
}

/// The complaints about a text; `structs` are those of this text and the ones before it.
fn complaints(text: &str, structs: &BTreeSet<&str>) -> Vec<String> {
    let (tokens, reserved, library) = (tokens(text), words(RESERVED), words(LIBRARY));
    let mut complaints = Vec::new();
    for token in tokens.iter().filter(|token| reserved.contains(**token)) {
        complaints.push(format!("{token} is a word of Metal's, or one that it does not have"));
    }
    for name in names(&tokens).iter().filter(|name| library.contains(**name)) {
        complaints.push(format!("{name} is in Metal's library"));
    }
    for line in text.lines().filter(|line| line.starts_with(char::is_alphabetic) && line.contains(" = ")) {
        if !["INLINE", "BODY"].iter().any(|word| line.starts_with(word)) {
            complaints.push(format!("a variable outside of functions: {line}"));
        }
    }
    for (i, token) in tokens.iter().enumerate() {
        let points = tokens.get(i + 1).is_some_and(|next| ["*", "&"].contains(next));
        if points && (NUMBERS.contains(token) || structs.contains(token)) {
            let space = tokens[..i].iter().rev().find(|token| !["const", "volatile"].contains(token));
            if !space.is_some_and(|space| SPACES.contains(space)) {
                complaints.push(format!("a pointer to {token} does not say where that is"));
            }
        }
    }
    complaints
}

fn structs<'a>(tokens: &[&'a str]) -> impl Iterator<Item = &'a str> {
    tokens.windows(2).filter(|pair| pair[0] == "struct").map(|pair| pair[1])
}

#[test]
fn kernels_use_no_word_of_metals_and_every_pointer_names_its_space() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let list = |folder: &Path| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut texts: Vec<_> = list(&folder)
        .chain(list(&folder.join("metal")))
        // tiles.h wraps Metal's own types.
        .filter(|path| path.is_file() && !path.ends_with("metal/tiles.h"))
        .map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap()))
        .collect();
    assert!(texts.len() > 20, "{} files", texts.len());
    for (name, text) in &mut texts {
        if name.ends_with("dialect.h") {
            // The part before is specific to each compiler.
            let common = text.find("\nINLINE f32 bf16_to_f32").expect("the dialect's common part");
            *text = text.split_off(common);
        }
    }
    let structs: BTreeSet<&str> =
        texts.iter().flat_map(|(_, text)| structs(&tokens(text)).collect::<Vec<_>>()).collect();
    let found: Vec<String> = texts
        .iter()
        .flat_map(|(name, text)| {
            complaints(text, &structs).into_iter().map(move |complaint| format!("{name}: {complaint}"))
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn each_mistake_is_found() {
    let structs = BTreeSet::from(["Row"]);
    let right = "
        INLINE u32 first(const DEVICE Row* rows, THREAD_PTR u32* out, u32 step) { return step * *out; } // u32* half
        BODY(pick) { const DEVICE u8 *a = in.x, *b = a; const u32 all = (u32)(a - b) & 3; }";
    assert_eq!(complaints(right, &structs), Vec::<String>::new());
    let wrong = [
        "u32 thread;",
        " const u16 half = 0;",
        " f32 v = (double)x;",
        "INLINE f32 dot(f32 a, f32 b) { return a * b; }",
        "#define INFINITY 1",
        "struct select { u32 a; };",
        "BODY(rotate) {}",
        " u32* p = 0;",
        "const Row *rows;",
        "INLINE void put(const Row& row) {}",
        "const u32 table[2] = {1, 2};",
        " x = *(u32x4*)at.shared;",
    ];
    for text in wrong {
        assert_eq!(complaints(text, &structs).len(), 1, "{text}: {:?}", complaints(text, &structs));
    }
}
