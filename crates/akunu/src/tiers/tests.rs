#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::disk::DiskTier;
use super::file::{Header, Writer, file_bytes};
use super::host::HostTier;
use crate::blocks::{Name, Named};

const POSITIONS: usize = 4;
const DATA: usize = 24;

fn model() -> Name {
    Name::of(&[b"a model"])
}

/// A block, number `index` of a text of its own.
fn block(text: u32, index: u32) -> Named {
    let tokens = |index: u32| (0..POSITIONS as u32).map(move |i| text * 100 + index * 10 + i);
    let parent = (0..index).fold(model().root(0), |name, i| name.followed_by(&tokens(i).collect::<Vec<_>>()));
    let tokens: Vec<u32> = tokens(index).collect();
    Named { name: parent.followed_by(&tokens), parent, tokens }
}

fn data(text: u32) -> Vec<u8> {
    (0..DATA).map(|i| (text as u8).wrapping_mul(31) ^ i as u8).collect()
}

fn open(folder: &Path, limit: u64) -> (DiskTier, Vec<String>) {
    let mut warnings = Vec::new();
    let tier = DiskTier::open(folder, limit, model(), (POSITIONS, DATA), &mut warnings).unwrap();
    (tier, warnings)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn put(tier: &mut DiskTier, text: u32) -> Vec<String> {
    let mut warnings = Vec::new();
    tier.put(&block(text, 0), &data(text), &mut warnings);
    warnings
}

/// The content of a block, and the warnings.
fn get(tier: &mut DiskTier, text: u32) -> (Option<Vec<u8>>, Vec<String>) {
    let (mut found, mut warnings) = (vec![0; DATA], Vec::new());
    let is_there = tier.get(&block(text, 0), &mut found, &mut warnings);
    (is_there.then_some(found), warnings)
}

#[test]
fn names_depend_on_everything_before_and_not_on_the_process() {
    let root = model().root(7);
    assert_eq!(root, model().root(7));
    assert_ne!(root, model().root(8));
    assert_ne!(root, Name::of(&[b"another model"]).root(7));
    let block = root.followed_by(&[1, 2]);
    assert_eq!(block, root.followed_by(&[1, 2]));
    assert_ne!(block, root.followed_by(&[1, 3]));
    assert_ne!(block.followed_by(&[1, 2]), block);
    assert_eq!(
        Name([0; 32]).followed_by(&[1]).to_string(),
        "71c99cc3bc21757feed5b712744ebb0f770d5c41d99189f9457495747bf11050"
    );
}

#[test]
fn a_file_that_differs_in_any_byte_is_ignored_with_one_warning() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tier, _) = open(folder.path(), 1 << 20);
    assert_eq!(put(&mut tier, 1), [""; 0]);
    assert_eq!(get(&mut tier, 1), (Some(data(1)), vec![]));
    let path = folder.path().join(&names(folder.path())[0]);
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole.len() as u64, file_bytes(POSITIONS, DATA));
    for at in 0..whole.len() {
        for bit in [0, 7] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            fs::write(&path, &damaged).unwrap();
            let (mut tier, _) = open(folder.path(), 1 << 20);
            let (found, warnings) = get(&mut tier, 1);
            assert_eq!((found, warnings.len()), (None, 1), "byte {at}");
            assert!(warnings[0].ends_with("the file is ignored"), "{warnings:?}");
            assert_eq!(get(&mut tier, 1), (None, vec![]), "it is reported once");
            assert!(!tier.has(block(1, 0).name));
            // The block is written again when it leaves the device again.
            assert_eq!(put(&mut tier, 1), [""; 0]);
            assert_eq!(get(&mut tier, 1), (Some(data(1)), vec![]));
        }
    }
}

#[test]
fn a_file_of_another_length_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tier, _) = open(folder.path(), 1 << 20);
    put(&mut tier, 1);
    let path = folder.path().join(&names(folder.path())[0]);
    let whole = fs::read(&path).unwrap();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let (mut tier, _) = open(folder.path(), 1 << 20);
        assert_eq!((get(&mut tier, 1).0, get(&mut tier, 1).1.len()), (None, 0), "{len} bytes");
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    let (mut tier, _) = open(folder.path(), 1 << 20);
    assert!(get(&mut tier, 1).1[0].contains("damaged"));
}

#[test]
fn a_block_of_another_text_or_model_under_the_same_name_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tier, _) = open(folder.path(), 1 << 20);
    let path = folder.path().join(format!("{}.kv", block(1, 0).name));
    let of =
        |model, block: Named| Header { model, parent: block.parent, exact: POSITIONS, tokens: block.tokens };
    for header in [of(model(), block(2, 0)), of(model(), block(1, 1)), of(Name([1; 32]), block(1, 0))] {
        let mut writer = Writer::create(&path, &header).unwrap();
        writer.add(&data(1)).unwrap();
        writer.finish().unwrap();
        let (found, warnings) = get(&mut tier, 1);
        assert_eq!((found, warnings.len()), (None, 1), "{header:?}");
        tier = open(folder.path(), 1 << 20).0;
    }
}

#[test]
fn a_full_disk_ends_writing_with_one_warning_and_leaves_no_part() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tier, _) = open(folder.path(), 1 << 20);
    put(&mut tier, 1);
    tier.write = |path, header, data| {
        let mut writer = Writer::create(path, header)?;
        writer.add(&data[..DATA / 2])?;
        Err(io::ErrorKind::StorageFull.into())
    };
    let warnings = put(&mut tier, 2);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("no more of the cache is written"), "{warnings:?}");
    assert_eq!(put(&mut tier, 3), [""; 0]);
    assert_eq!(names(folder.path()), [format!("{}.kv", block(1, 0).name)]);
    assert_eq!(get(&mut tier, 1), (Some(data(1)), vec![]), "what is there is still read");
}

#[test]
fn a_folder_that_is_created_and_one_that_vanishes() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("a/b");
    let (mut tier, warnings) = open(&folder, 1 << 20);
    assert_eq!((put(&mut tier, 1), warnings), (vec![], vec![]));
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(get(&mut tier, 1), (None, vec![]));
    assert_eq!((put(&mut tier, 2).len(), put(&mut tier, 3).len()), (1, 0));
    // A file is in the place of the folder.
    fs::write(&folder, "text").unwrap();
    let error = DiskTier::open(&folder, 1 << 20, model(), (POSITIONS, DATA), &mut vec![]).unwrap_err();
    assert!(error.to_string().contains("a/b"), "{error}");
}

#[test]
fn the_oldest_files_go_so_that_the_limit_holds() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 5 * file_bytes(POSITIONS, DATA) + 7;
    let (mut tier, _) = open(folder.path(), limit);
    let old = SystemTime::now() - Duration::from_secs(100);
    for text in 0..12u32 {
        if text == 9 {
            // It was just used.
            assert!(tier.touch(block(5, 0).name));
        }
        assert_eq!(put(&mut tier, text), [""; 0]);
        if text != 5 {
            let path = folder.path().join(format!("{}.kv", block(text, 0).name));
            let modified = old + Duration::from_secs(text.into());
            fs::File::options().append(true).open(path).unwrap().set_modified(modified).unwrap();
        }
        assert!(names(folder.path()).len() <= 5);
    }
    let there: Vec<u32> = (0..12).filter(|text| tier.has(block(*text, 0).name)).collect();
    assert_eq!(there, [5, 8, 9, 10, 11]);
    assert_eq!(tier.used(), 5 * file_bytes(POSITIONS, DATA));
    let error = DiskTier::open(folder.path(), 100, model(), (POSITIONS, DATA), &mut vec![]).unwrap_err();
    assert!(error.to_string().contains("at least that of one block"), "{error}");
}

#[test]
fn two_tiers_in_one_folder_find_each_others_blocks_and_share_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 64 * file_bytes(POSITIONS, DATA);
    let [(mut first, _), (mut second, _)] = [(); 2].map(|()| open(folder.path(), limit));
    put(&mut first, 1);
    assert_eq!(get(&mut second, 1), (Some(data(1)), vec![]));
    for text in 2..200 {
        let tier = if text % 2 == 0 { &mut first } else { &mut second };
        assert_eq!(put(tier, text), [""; 0]);
        // Each may exceed it by a sixteenth.
        assert!(names(folder.path()).len() <= 64 + 2 * 5);
    }
    // One that the other has removed is not there, without a word.
    fs::remove_file(folder.path().join(format!("{}.kv", block(199, 0).name))).unwrap();
    assert_eq!(get(&mut first, 199), (None, vec![]));
}

#[test]
fn other_files_are_left_alone_and_abandoned_parts_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let name = block(1, 0).name;
    let part = folder.path().join(format!("{name}.kv.123-0.tmp"));
    for path in [&part, &folder.path().join("notes.txt"), &folder.path().join("x.kv")] {
        fs::write(path, "text").unwrap();
    }
    let (_, warnings) = open(folder.path(), 1 << 20);
    assert!(warnings[0].contains("2 files that are not of the cache"), "{warnings:?}");
    assert!(part.exists(), "another process may be writing it");
    let old = SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().append(true).open(&part).unwrap().set_modified(old).unwrap();
    open(folder.path(), 1 << 20);
    assert_eq!(names(folder.path()), ["notes.txt", "x.kv"]);
}

#[test]
fn the_hosts_memory_gives_up_what_was_used_least_recently() {
    let mut host = HostTier::new(2);
    let mut memory = data(1);
    assert_eq!(host.put(block(1, 0), &mut memory), None);
    memory.copy_from_slice(&data(2));
    assert_eq!(host.put(block(2, 0), &mut memory), None);
    assert!(host.touch(block(1, 0).name));
    memory.copy_from_slice(&data(3));
    assert_eq!(host.put(block(3, 0), &mut memory), Some(block(2, 0)));
    assert_eq!(memory, data(2), "the content of the one that goes");
    assert_eq!((host.len(), host.allocated()), (2, 2 * DATA));
    // Equal names with other tokens are not taken for the same.
    let other = Named { tokens: vec![9; POSITIONS], ..block(1, 0) };
    assert!(!host.take(&other, &mut memory) && host.has(block(1, 0).name));
    assert!(host.take(&block(1, 0), &mut memory));
    assert_eq!((memory.clone(), host.len(), host.allocated()), (data(1), 1, 2 * DATA));
    assert!(!host.take(&block(1, 0), &mut memory));
    let texts: Vec<&Named> = host.newest_first().map(|(block, _)| block).collect();
    assert_eq!(texts, [&block(3, 0)]);
}
