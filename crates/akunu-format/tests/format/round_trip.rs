//! The reader reads what the writer writes. Damaged files are tested in `akunu-arch`, through both crates.
#![allow(clippy::unwrap_used)] // in helpers of tests

use akunu_format::blocks::{Rng, random_row};
use akunu_format::{Array, DType, Gguf, GgufWriter, Metadata, Region, Strings, TensorSpec, Value};
use proptest::collection::vec;
use proptest::prelude::*;

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        ".{0,20}".prop_map(Value::String),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    let leaf = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(".{0,9}", 0..9).prop_map(|all| Array::Strings(all.into_iter().collect::<Strings>())),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| vec(inner, 0..4).prop_map(Array::Arrays))
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let value = prop_oneof![scalar(), array().prop_map(Value::Array)];
    (vec(("[a-z.]{1,12}", value), 0..10), 0u32..9).prop_map(|(pairs, power)| {
        let mut metadata = Metadata::default();
        for (key, value) in pairs {
            metadata.insert(key, value);
        }
        metadata.insert("general.alignment", Value::U32(1 << power));
        metadata
    })
}

fn spec() -> impl Strategy<Value = TensorSpec> {
    (0..DType::ALL.len(), 1usize..3, vec(1usize..4, 0..4), "[a-z.0-9]{1,9}").prop_map(
        |(dtype, blocks, outer, name)| {
            let dtype = DType::ALL[dtype];
            let mut shape = outer;
            shape.push(blocks * dtype.block_len());
            TensorSpec::new(name, dtype, shape)
        },
    )
}

fn specs() -> impl Strategy<Value = Vec<TensorSpec>> {
    vec(spec(), 0..6).prop_map(|mut specs| {
        for (i, spec) in specs.iter_mut().enumerate() {
            spec.name.push_str(&format!("#{i}"));
        }
        specs
    })
}

fn data_of(spec: &TensorSpec, seed: u64) -> Vec<u8> {
    let mut data = vec![0; spec.bytes().unwrap()];
    random_row(spec.dtype, &mut Rng::new(seed), 1.0, &mut data).unwrap();
    data
}

fn write(metadata: &Metadata, specs: &[TensorSpec]) -> Vec<u8> {
    let mut writer = GgufWriter::new(Vec::new(), metadata, specs.to_vec()).unwrap();
    for (i, spec) in specs.iter().enumerate() {
        // In pieces, as data of a large file is written.
        writer
            .tensor(|out| data_of(spec, i as u64).chunks(7).try_for_each(|piece| out.write_all(piece)))
            .unwrap();
    }
    writer.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gguf_round_trips(metadata in metadata(), specs in specs()) {
        let gguf = Gguf::from_region(Region::from_vec(write(&metadata, &specs))).unwrap();
        // Compared as text, in which NaN equals itself.
        let show = |metadata: &Metadata| {
            metadata.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>()
        };
        prop_assert_eq!(show(gguf.metadata()), show(&metadata));
        prop_assert_eq!(gguf.tensors().len(), specs.len());
        for (i, (tensor, spec)) in gguf.tensors().iter().zip(&specs).enumerate() {
            prop_assert_eq!(&tensor.name, &spec.name);
            prop_assert_eq!(&tensor.shape, &spec.shape);
            prop_assert_eq!(tensor.dtype, spec.dtype);
            prop_assert_eq!(gguf.tensor_bytes(tensor), &data_of(spec, i as u64)[..]);
        }
    }
}

#[test]
fn the_writer_rejects_invalid_files() {
    let new = |specs: Vec<TensorSpec>| GgufWriter::new(Vec::new(), &Metadata::default(), specs);
    let message = |specs| new(specs).unwrap_err().to_string();
    let x = |shape: &[usize]| TensorSpec::new("x", DType::Q4_0, shape);
    assert_eq!(message(vec![x(&[32]), x(&[32])]), "tensor x: it occurs twice");
    assert_eq!(
        message(vec![x(&[33])]),
        "tensor x: rows of 33 elements are not a multiple of the Q4_0 block size 32"
    );
    assert_eq!(message(vec![x(&[0, 32])]), "tensor x: a dimension of [0, 32] is zero");
    assert_eq!(message(vec![x(&[])]), "tensor x: it has 0 dimensions, but 1 to 4 are allowed");

    let mut writer = new(vec![x(&[32])]).unwrap();
    let error = writer.tensor(|out| out.write_all(&[0; 17])).unwrap_err();
    assert_eq!(error.to_string(), "tensor x: 1 of its 18 bytes were not written");
    let mut writer = new(vec![x(&[32])]).unwrap();
    let error = writer.tensor(|out| out.write_all(&[0; 19])).unwrap_err().to_string();
    assert_eq!(error, "cannot write the file: a tensor has more data than its type and shape take");
    let error = new(vec![x(&[32])]).unwrap().finish().unwrap_err().to_string();
    assert_eq!(error, "tensor x: it was declared but not written");
    let error = new(vec![]).unwrap().tensor(|_| Ok(())).unwrap_err().to_string();
    assert_eq!(error, "damaged header: more tensors were written than declared");
}
