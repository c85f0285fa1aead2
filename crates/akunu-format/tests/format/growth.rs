//! Files are read in time and memory that grow with their size, and with a few times their size of memory.
#![allow(clippy::unwrap_used)]

use akunu_format::hf::{Document, Weights};
use akunu_format::{Gguf, Region};
use akunu_testing::{Cost, MeasuringAllocator, assert_growth};

#[global_allocator]
static ALLOCATOR: MeasuringAllocator = MeasuringAllocator;

/// What reading a header takes at most: this many times its size, its copy for the region included.
const MOST: u64 = 32;

/// The same for JSON, of which at most a million values are read.
const MOST_OF_JSON: u64 = 128;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn gguf(keys: &[Vec<u8>], tensors: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    keys.iter().chain(tensors).for_each(|part| bytes.extend(part));
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name)[..], &kind.to_le_bytes(), value].concat()
}

fn array(kind: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes(), &elements.concat()].concat()
}

/// A tensor of 8 floats.
fn tensor(name: &str, index: usize) -> Vec<u8> {
    let parts = [&text(name)[..], &1u32.to_le_bytes(), &8u64.to_le_bytes(), &0u32.to_le_bytes()];
    [&parts.concat()[..], &(32 * index as u64).to_le_bytes()].concat()
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

fn each<T>(count: usize, make: impl Fn(usize) -> T) -> Vec<T> {
    (0..count).map(make).collect()
}

/// Reads a file, and all that is in it.
fn read_gguf(bytes: &[u8]) -> Option<Gguf> {
    let gguf = Gguf::from_region(Region::from_vec(bytes.to_vec())).ok()?;
    let metadata = gguf.metadata();
    for (key, value) in metadata.iter() {
        assert!(metadata.get(key).is_some());
        std::hint::black_box(value.type_name());
        if let Ok(Some(strings)) = metadata.strings(key) {
            assert!(strings.iter().map(str::len).sum::<usize>() <= bytes.len());
        }
    }
    assert!(gguf.tensors().iter().all(|tensor| gguf.tensor(&tensor.name).is_some()));
    Some(gguf)
}

#[test]
fn gguf_files() {
    type Make = fn(usize) -> Vec<u8>;
    let files: [(&str, Make); 10] = [
        ("keys", |n| gguf(&each(n / 8, |i| key(&format!("key.{i}"), 4, &[0; 4])), &[], 0)),
        ("long keys", |n| {
            gguf(&each(20, |i| key(&format!("{i:0>width$}", width = n / 20), 4, &[0; 4])), &[], 0)
        }),
        ("strings", |n| gguf(&[key("a", STRING, &text(&"\u{e9}".repeat(n * 4)))], &[], 0)),
        ("an array of strings", |n| {
            gguf(&[key("a", ARRAY, &array(STRING, &each(n, |i| text(&i.to_string()))))], &[], 0)
        }),
        ("arrays of bytes", |n| gguf(&[key("a", ARRAY, &array(0, &each(n * 8, |i| vec![i as u8])))], &[], 0)),
        ("arrays of arrays", |n| {
            gguf(&[key("a", ARRAY, &array(ARRAY, &each(n / 4, |_| array(0, &[vec![1]]))))], &[], 0)
        }),
        ("tensors", |n| {
            let count = n / 8;
            gguf(&[], &each(count, |i| tensor(&format!("blk.{i}.weight"), i)), 32 * count)
        }),
        ("tensors in reverse", |n| {
            let count = n / 8;
            gguf(&[], &each(count, |i| tensor(&format!("blk.{i}.weight"), count - 1 - i)), 32 * count)
        }),
        ("a key twice", |n| {
            gguf(&each(n / 8, |i| key(&format!("key.{}", i % (n / 8 - 1)), 4, &[0; 4])), &[], 0)
        }),
        ("overlapping tensors", |n| gguf(&[], &each(n / 8, |i| tensor(&format!("{i}"), 0)), 32)),
    ];
    for (what, make) in files {
        let (file, cost) = assert_growth(what, 1 << 12, make, |bytes| read_gguf(bytes));
        let is_bad = ["a key twice", "overlapping tensors"].contains(&what);
        assert_eq!(read_gguf(&file).is_none(), is_bad, "{what}");
        println!("{what}: {} bytes, {cost:?}", file.len());
        assert!(cost.peak <= MOST * file.len() as u64, "{what}: {cost:?} for {} bytes", file.len());
    }
}

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn of_tensors(count: usize, offsets: impl Fn(usize) -> usize, name: impl Fn(usize) -> String) -> Vec<u8> {
    let entry = |i: usize| {
        let from = 4 * offsets(i);
        format!(r#""{}":{{"dtype":"F32","shape":[1],"data_offsets":[{from},{}]}}"#, name(i), from + 4)
    };
    safetensors(&format!("{{{}}}", each(count, entry).join(",")), 4 * count)
}

#[test]
fn safetensors_headers() {
    type Make = fn(usize) -> Vec<u8>;
    let files: [(&str, Make); 6] = [
        ("tensors", |n| of_tensors(n / 8, |i| i, |i| format!("layers.{i}.weight"))),
        ("tensors in reverse", |n| of_tensors(n / 8, |i| n / 8 - 1 - i, |i| i.to_string())),
        ("long names", |n| of_tensors(20, |i| i, |i| format!("{i:0>width$}", width = n / 20))),
        ("metadata", |n| {
            let entries = each(n / 8, |i| format!(r#""key {i}":"a""#)).join(",");
            safetensors(&format!(r#"{{"__metadata__":{{{entries}}}}}"#), 0)
        }),
        ("shapes", |n| {
            let shape = vec!["1"; n].join(",");
            safetensors(&format!(r#"{{"a":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,4]}}}}"#), 4)
        }),
        ("overlapping tensors", |n| of_tensors(n / 8, |_| 0, |i| i.to_string())),
    ];
    let read = |bytes: &Vec<u8>| Weights::from_region(Region::from_vec(bytes.clone())).ok();
    for (what, make) in files {
        let (file, cost) = assert_growth(what, 1 << 12, make, |bytes| {
            read(bytes).map(|weights| assert!(weights.names().count() <= bytes.len()))
        });
        assert_eq!(read(&file).is_none(), what == "overlapping tensors", "{what}");
        println!("{what}: {} bytes, {cost:?}", file.len());
        assert!(cost.peak <= MOST * file.len() as u64, "{what}: {cost:?} for {} bytes", file.len());
    }
}

#[test]
fn json_documents() {
    type Make = fn(usize) -> String;
    let documents: [(&str, Make); 5] = [
        ("fields", |n| format!("{{{}}}", each(n, |i| format!(r#""key {i}":{i}"#)).join(","))),
        ("a list", |n| format!(r#"{{"a":[{}]}}"#, vec!["0"; n].join(","))),
        ("a text", |n| format!(r#"{{"a":"{}"}}"#, "\\u00e9".repeat(n))),
        ("lists of lists", |n| format!(r#"{{"a":[{}]}}"#, vec!["[[[]]]"; n].join(","))),
        ("a field twice", |n| format!("{{{}}}", vec![r#""a":{"b":1}"#; n].join(","))),
    ];
    for (what, make) in documents {
        let (text, cost) = assert_growth(what, 1 << 11, make, |text| {
            let document = Document::parse(text).unwrap();
            let root = document.root();
            for key in root.keys() {
                assert!(root.mentions(key));
                std::hint::black_box(root.get(key));
            }
            let _ = (root.ids("a"), root.strings("a"), root.f64s("a"), root.usize("a"));
        });
        println!("{what}: {} bytes, {cost:?}", text.len());
        assert!(cost.peak <= MOST_OF_JSON * text.len() as u64, "{what}: {cost:?} for {} bytes", text.len());
    }
}

#[test]
fn json_of_too_many_values_is_refused_before_it_is_parsed() {
    let text = format!(r#"{{"a":[{}]}}"#, vec!["0"; 2 << 20].join(","));
    let cost = Cost::of(|| {
        let error = Document::parse(&text).unwrap_err().to_string();
        assert!(error.contains("at most 1048576"), "{error}");
    });
    assert!(cost.peak < 4096, "{cost:?}");
    let strings = format!(r#"{{"a":"{}"}}"#, "[{\\\",:".repeat(1 << 20));
    assert!(Document::parse(&strings).is_ok());
}
