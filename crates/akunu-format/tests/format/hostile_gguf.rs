//! Damaged and malicious GGUF files: each is rejected with an error that names the position.
#![allow(clippy::unwrap_used)] // in helpers of tests

use akunu_format::gguf::{ListedTensor, Listing};
use akunu_format::{FormatError, Gguf, Region};

/// Builds a GGUF file byte by byte, valid or invalid as a test requires.
#[derive(Clone)]
struct Raw {
    version: u32,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    tensor_count: Option<u64>,
    key_count: Option<u64>,
    data: usize,
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name.as_bytes())[..], &kind.to_le_bytes(), value].concat()
}

fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// `dims` innermost first, as in the file.
fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut out = text(name.as_bytes());
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|n| out.extend(n.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

impl Raw {
    fn new() -> Raw {
        Raw { version: 3, keys: vec![], tensors: vec![], tensor_count: None, key_count: None, data: 0 }
    }

    fn with_key(mut self, key: Vec<u8>) -> Raw {
        self.keys.push(key);
        self
    }

    fn with_tensor(mut self, tensor: Vec<u8>, data: usize) -> Raw {
        self.tensors.push(tensor);
        self.data = self.data.max(data);
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        self.keys.iter().chain(&self.tensors).for_each(|entry| out.extend(entry));
        if self.data > 0 {
            out.resize(out.len().next_multiple_of(32) + self.data, 0);
        }
        out
    }

    fn open(&self) -> Result<Gguf, FormatError> {
        Gguf::from_region(Region::from_vec(self.bytes()))
    }

    #[track_caller]
    fn refused(&self, expected: &str) {
        assert_eq!(self.open().unwrap_err().to_string(), expected);
    }
}

fn f32s(name: &str, n: u64, offset: u64) -> Vec<u8> {
    tensor(name, &[n], 0, offset)
}

#[test]
fn the_builder_makes_valid_files() {
    let raw = Raw::new()
        .with_key(key("general.alignment", 4, &32u32.to_le_bytes()))
        .with_tensor(tensor("a", &[3, 2], 0, 0), 64)
        .with_tensor(f32s("b", 8, 32), 64);
    let gguf = raw.open().unwrap();
    assert_eq!(gguf.tensor("a").unwrap().shape, [2, 3]);
    assert_eq!(gguf.tensor("b").unwrap().bytes, 32);
    assert_eq!(Raw { version: 2, ..raw }.open().unwrap().tensors().len(), 2);
}

#[test]
fn versions_and_byte_orders() {
    Raw { version: 1, ..Raw::new() }
        .refused("GGUF version 1 is not supported (2 and 3 are): convert the original model again");
    Raw { version: 4, ..Raw::new() }
        .refused("GGUF version 4 is not supported (2 and 3 are): convert the original model again");
    Raw { version: 3u32.swap_bytes(), ..Raw::new() }
        .refused("big-endian GGUF is not supported: convert the file with gguf-py's gguf_convert_endian");
    let error = Gguf::from_region(Region::from_static(b"GGML\x03\0\0\0")).unwrap_err();
    assert_eq!(error.to_string(), "damaged header: it does not begin with the letters GGUF");
}

#[test]
fn counts_beyond_the_file() {
    Raw { key_count: Some(u64::MAX), ..Raw::new() }
        .refused("damaged header: it claims 18446744073709551615 entries with 0 bytes left");
    Raw { tensor_count: Some(1 << 20), ..Raw::new() }
        .refused("damaged header: it claims 1048576 tensors with 0 bytes left");
    Raw { tensor_count: Some(1 << 40), ..Raw::new() }
        .refused("damaged header: 0 metadata keys and 1099511627776 tensors are more than any model has");
    Raw::new()
        .with_key(key("k", 9, &array(8, 1 << 60, &[0; 16])))
        .refused("metadata key `k`: it claims 1152921504606846976 entries with 16 bytes left");
    Raw::new()
        .with_key(key("k", 9, &array(10, u64::MAX / 8 + 2, &[0; 16])))
        .refused("metadata key `k`: it claims 2305843009213693953 entries with 16 bytes left");
    Raw::new()
        .with_key([&u64::MAX.to_le_bytes()[..], b"key and more"].concat())
        .refused("the file ends inside the name of metadata key 1 of 1: 18446744073709551615 bytes needed, 12 left. It is cut short or damaged: download it again");
    Raw::new()
        .with_key(key("k", 8, &[&(1u64 << 50).to_le_bytes()[..], b"text"].concat()))
        .refused("the file ends inside metadata key `k`: 1125899906842624 bytes needed, 4 left. It is cut short or damaged: download it again");
}

#[test]
fn bad_metadata_values() {
    Raw::new().with_key(key("k", 13, &[0; 8])).refused("metadata key `k`: unknown value type 13");
    Raw::new()
        .with_key(key("k", 9, &array(99, 1, &[0; 8])))
        .refused("metadata key `k`: unknown value type 99");
    Raw::new().with_key(key("k", 7, &[2])).refused("metadata key `k`: 2 is not a bool");
    Raw::new().with_key(key("k", 9, &array(7, 3, &[0, 1, 7]))).refused("metadata key `k`: 7 is not a bool");
    Raw::new().with_key(key("k", 8, &text(b"\xff\xfe"))).refused("metadata key `k`: the text is not UTF-8");
    Raw::new()
        .with_key(key("k", 9, &array(8, 2, &[text(b"fine"), text(b"\xc3")].concat())))
        .refused("metadata key `k`: the text is not UTF-8");
    Raw::new()
        .with_key(key("first", 4, &[0; 4]))
        .with_key([&text(b"\x80key")[..], &4u32.to_le_bytes(), &[0; 4]].concat())
        .refused("damaged header: the name of metadata key 2 of 2 (after `first`): the text is not UTF-8");
    Raw::new()
        .with_key(key("k", 4, &[0; 4]))
        .with_key(key("k", 4, &[0; 4]))
        .refused("metadata key `k`: it occurs twice");
}

#[test]
fn arrays_nested_too_deep() {
    let mut nested = array(4, 1, &[0; 4]);
    for _ in 0..7 {
        nested = array(9, 1, &nested);
    }
    assert!(Raw::new().with_key(key("k", 9, &nested)).open().is_ok());
    let nested = array(9, 1, &nested);
    Raw::new().with_key(key("k", 9, &nested)).refused("metadata key `k`: arrays are nested more than 8 deep");
    // Nested as deeply as the file is long.
    let bomb: Vec<u8> = std::iter::repeat_n(array(9, 1, &[]), 100_000).flatten().collect();
    Raw::new().with_key(key("k", 9, &bomb)).refused("metadata key `k`: arrays are nested more than 8 deep");
}

#[test]
fn alignments() {
    for wrong in [0u32, 3, 48] {
        Raw::new()
            .with_key(key("general.alignment", 4, &wrong.to_le_bytes()))
            .refused(&format!("metadata key `general.alignment`: {wrong} is not a power of two"));
    }
    Raw::new()
        .with_key(key("general.alignment", 8, &text(b"32")))
        .refused("key `general.alignment` should be an integer, but is string");
    Raw::new()
        .with_tensor(f32s("blk.0.x", 1, 4), 64)
        .refused("tensor blk.0.x: its offset 4 is not a multiple of the alignment 32");
    // The largest alignment, in a small file.
    Raw::new()
        .with_key(key("general.alignment", 4, &(1u32 << 31).to_le_bytes()))
        .with_tensor(f32s("x", 1, 0), 64)
        .refused("the file ends inside the data of tensor x: 4 bytes needed, 0 left. It is cut short or damaged: download it again");
}

#[test]
fn tensor_shapes() {
    let refused = |dims: &[u64], kind: u32, expected: &str| {
        Raw::new().with_tensor(tensor("blk.0.x", dims, kind, 0), 64).refused(expected);
    };
    refused(&[], 0, "tensor blk.0.x: it has 0 dimensions, but 1 to 4 are allowed");
    refused(&[1; 5], 0, "tensor blk.0.x: it has 5 dimensions, but 1 to 4 are allowed");
    refused(&[4, 0], 0, "tensor blk.0.x: a dimension of [0, 4] is zero");
    refused(
        &[1 << 32, 1 << 32],
        0,
        "tensor blk.0.x: [4294967296, 4294967296] is too large: its size overflows",
    );
    refused(
        &[1 << 40, 1 << 10, 1 << 14, 1],
        0,
        "tensor blk.0.x: [1, 16384, 1024, 1099511627776] is too large: its size overflows",
    );
    refused(
        &[u64::MAX],
        2,
        "tensor blk.0.x: rows of 18446744073709551615 elements are not a multiple of the Q4_0 block size 32",
    );
    for (id, name) in [(16, "IQ2_XXS"), (19, "IQ1_S"), (21, "IQ3_S"), (29, "IQ1_M")] {
        let expected =
            format!("tensor blk.0.x: rows of 32 elements are not a multiple of the {name} block size 256");
        refused(&[32], id, &expected);
    }
    refused(&[100], 12, "tensor blk.0.x: rows of 100 elements are not a multiple of the Q4_K block size 256");
    let mut raw = Raw::new().with_tensor(tensor("blk.0.x", &[1], 0, 0), 64);
    raw.tensors[0][15..19].copy_from_slice(&u32::MAX.to_le_bytes());
    raw.refused("tensor blk.0.x: it has 4294967295 dimensions, but 1 to 4 are allowed");
}

#[test]
fn tensor_types_are_refused_by_name() {
    let supported =
        "take a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ1_S to IQ4_XS or MXFP4";
    for (id, name) in [
        (4, "Q4_2 (removed from GGUF)"),
        (9, "Q8_1"),
        (24, "I8"),
        (28, "F64"),
        (31, "Q4_0_4_4 (removed from GGUF)"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
        (40, "NVFP4"),
        (1000, "of unknown type 1000"),
    ] {
        Raw::new()
            .with_tensor(tensor("blk.0.x", &[256], id, 0), 1024)
            .refused(&format!("tensor blk.0.x is {name}, which is not supported: {supported}"));
    }
}

#[test]
fn tensor_places() {
    Raw::new()
        .with_tensor(f32s("a", 9, 0), 64)
        .with_tensor(f32s("b", 8, 32), 64)
        .refused("tensor b: its data overlaps that of tensor a");
    Raw::new()
        .with_tensor(f32s("a", 8, 32), 64)
        .with_tensor(f32s("b", 16, 0), 64)
        .refused("tensor a: its data overlaps that of tensor b");
    Raw::new()
        .with_tensor(f32s("a", 1, 0), 64)
        .with_tensor(f32s("a", 1, 32), 64)
        .refused("tensor a: it occurs twice");
    Raw::new()
        .with_tensor(f32s("a", 17, 0), 64)
        .refused("the file ends inside the data of tensor a: 68 bytes needed, 64 left. It is cut short or damaged: download it again");
    Raw::new()
        .with_tensor(f32s("a", 1, u64::MAX - 31), 64)
        .refused("the file ends inside the data of tensor a: 4 bytes needed, 0 left. It is cut short or damaged: download it again");
    Raw::new()
        .with_tensor([&text(b"\xff")[..], &[0; 40]].concat(), 64)
        .refused("damaged header: the name of tensor 1 of 1: the text is not UTF-8");
}

#[test]
fn names_in_errors_are_truncated_and_escaped() {
    let name = format!("\x1b[31m{}", "x".repeat(10_000));
    let error = Raw::new().with_tensor(tensor(&name, &[0], 0, 0), 0).open().unwrap_err().to_string();
    assert!(error.starts_with("tensor \\u{1b}[31mxxx"), "{error}");
    assert!(error.len() < 300);
}

#[test]
fn every_truncation_is_an_error() {
    let whole = Raw::new()
        .with_key(key("general.name", 8, &text(b"a name")))
        .with_key(key("some.strings", 9, &array(8, 2, &[text(b"one"), text(b"two")].concat())))
        .with_key(key("some.bools", 9, &array(7, 2, &[0, 1])))
        .with_tensor(tensor("a", &[4, 4], 0, 0), 96)
        .with_tensor(f32s("b", 8, 64), 96)
        .bytes();
    assert!(Gguf::from_region(Region::from_vec(whole.clone())).is_ok());
    for len in 0..whole.len() {
        let error = Gguf::from_region(Region::from_vec(whole[..len].to_vec())).unwrap_err();
        let expected = matches!(error, FormatError::Truncated { .. } | FormatError::Header { .. })
            || matches!(&error, FormatError::Key { problem, .. } if problem.contains("entries"));
        assert!(expected, "at {len}: {error}");
    }
}

#[test]
fn a_listing_has_tensors_of_any_type_without_their_data() {
    const Q8_K: u32 = 15;
    let raw = Raw::new()
        .with_key(key("general.architecture", 8, &text(b"martian")))
        .with_tensor(tensor("a", &[256, 2], Q8_K, 0), 0)
        .with_tensor(tensor("b", &[4, 3], 0, 1), 0)
        .with_tensor(tensor("c", &[0, u64::MAX], 1000, 0), 0);
    assert!(Gguf::from_region(Region::from_vec(raw.bytes())).is_err());
    let listing = Listing::from_region(&Region::from_vec(raw.bytes())).unwrap();
    assert_eq!(listing.metadata.str("general.architecture").unwrap(), Some("martian"));
    let listed = |name: &str, type_name: &str, shape: &[u64], bytes| ListedTensor {
        name: name.into(),
        type_name: type_name.into(),
        shape: shape.to_vec(),
        bytes,
    };
    let expected = [
        listed("a", "Q8_K", &[2, 256], None),
        listed("b", "F32", &[3, 4], Some(48)),
        listed("c", "type 1000", &[u64::MAX, 0], None),
    ];
    assert_eq!(listing.tensors, expected);
    let bytes = raw.bytes();
    let is_listed = |length| Listing::from_region(&Region::from_vec(bytes[..length].to_vec())).is_ok();
    assert_eq!((0..=bytes.len()).find(|&length| is_listed(length)), Some(bytes.len()));
}
