//! The parts of packed weights: unpacked by hand, missing, damaged, and of kinds that are rejected.
#![allow(clippy::unwrap_used)] // in helpers of tests

use akunu_arch::{SafeTensorsModel, WeightProvider};
use akunu_format::Region;
use akunu_format::blocks::dequantize_nth;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A file with one packed matrix, `ffn_down`: 32 outputs of 64 inputs, in two groups of 32.
#[derive(Clone)]
struct Fake {
    tensors: Vec<(String, &'static str, Vec<usize>, Vec<u8>)>,
    settings: Value,
}

const DOWN: &str = "model.layers.0.mlp.down_proj";

/// Half-precision ones.
fn ones(count: usize) -> Vec<u8> {
    [0x00, 0x3c].repeat(count)
}

impl Fake {
    fn with(parts: Vec<(&'static str, &'static str, Vec<usize>, Vec<u8>)>, settings: Value) -> Fake {
        let parts = parts
            .into_iter()
            .map(|(part, dtype, shape, bytes)| (format!("{DOWN}.{part}"), dtype, shape, bytes));
        let plain = [("model.embed_tokens.weight", vec![4, 32], 128), ("model.norm.weight", vec![32], 32)];
        let plain = plain.map(|(name, shape, count)| (name.to_string(), "F16", shape, ones(count)));
        Fake { tensors: parts.chain(plain).collect(), settings }
    }

    fn gptq() -> Fake {
        let groups: Vec<u8> = (0..64).flat_map(|input| (input / 32i32).to_le_bytes()).collect();
        let parts = vec![
            ("qweight", "I32", vec![8, 32], vec![0x5a; 8 * 32 * 4]),
            ("qzeros", "I32", vec![2, 4], vec![0x77; 2 * 4 * 4]),
            ("scales", "F16", vec![2, 32], ones(64)),
            ("g_idx", "I32", vec![64], groups),
        ];
        Fake::with(parts, json!({"quant_method": "gptq", "bits": 4, "group_size": 32}))
    }

    fn awq() -> Fake {
        let parts = vec![
            ("qweight", "I32", vec![64, 4], vec![0x5a; 64 * 4 * 4]),
            ("qzeros", "I32", vec![2, 4], vec![0x77; 2 * 4 * 4]),
            ("scales", "F16", vec![2, 32], ones(64)),
        ];
        Fake::with(parts, json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}))
    }

    fn part(&mut self, part: &str) -> &mut (String, &'static str, Vec<usize>, Vec<u8>) {
        self.tensors.iter_mut().find(|tensor| tensor.0 == format!("{DOWN}.{part}")).unwrap()
    }

    fn without(&mut self, part: &str) {
        self.tensors.retain(|tensor| tensor.0 != format!("{DOWN}.{part}"));
    }

    fn reshape(&mut self, part: &str, shape: &[usize]) {
        let (_, dtype, old, bytes) = self.part(part);
        let size = if *dtype == "I32" { 4 } else { 2 };
        *old = shape.to_vec();
        bytes.resize(shape.iter().product::<usize>() * size, 0);
    }

    fn open(&self) -> Result<SafeTensorsModel, String> {
        self.open_with(32)
    }

    fn open_with(&self, hidden: usize) -> Result<SafeTensorsModel, String> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
        for (name, dtype, shape, bytes) in &self.tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
            data.extend(bytes);
        }
        let header = serde_json::to_string(&header).unwrap();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(data);
        let config = json!({
            "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 1, "num_attention_heads": 1,
            "intermediate_size": 64, "quantization_config": self.settings,
        });
        let model = SafeTensorsModel::from_region(Region::from_vec(file), &config.to_string());
        model.map_err(|error| error.to_string())
    }
}

#[track_caller]
fn refused(mut fake: Fake, change: impl FnOnce(&mut Fake), expected: &str) {
    change(&mut fake);
    assert_eq!(fake.open().unwrap_err(), expected);
}

const QWEIGHT: &str = "tensor model.layers.0.mlp.down_proj.qweight: ";
const REMEDY: &str = "take the original, or a GGUF file";

#[test]
fn what_is_packed_is_unpacked_by_hand() {
    // Codes alternate between 10 and 5. GPTQ stores zero points minus one: 8 of 7.
    let model = Fake::gptq().open().unwrap();
    let down = model.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((down.shape.as_slice(), down.dtype.name()), ([32, 64].as_slice(), "MLX4_G32_F16"));
    let mut row = [0.0; 64];
    dequantize_nth(down.dtype, model.plane_bytes(down), 31, &mut row).unwrap();
    assert_eq!(row[..4], [2.0, -3.0, 2.0, -3.0]);
    let mut v2 = Fake::gptq();
    v2.settings["checkpoint_format"] = json!("gptq_v2");
    let model = v2.open().unwrap();
    let down = model.tensor("blk.0.ffn_down.weight").unwrap();
    dequantize_nth(down.dtype, model.plane_bytes(down), 0, &mut row).unwrap();
    assert_eq!(row[..4], [3.0, -2.0, 3.0, -2.0]);
    // In AWQ the even outputs have the lower codes of a word.
    let mut awq = Fake::awq();
    awq.part("qweight").3 = [0x10, 0x32, 0x54, 0x76].repeat(64 * 4);
    awq.part("qzeros").3.fill(0);
    let model = awq.open().unwrap();
    let down = model.tensor("blk.0.ffn_down.weight").unwrap();
    for (output, code) in [(0, 0.0), (2, 1.0), (4, 2.0), (6, 3.0), (1, 4.0), (3, 5.0), (5, 6.0), (31, 7.0)] {
        dequantize_nth(down.dtype, model.plane_bytes(down), output, &mut row).unwrap();
        assert_eq!(row, [code; 64], "output {output}");
    }
}

#[test]
fn other_variants_are_refused_by_name() {
    for (key, value, asks) in [
        ("checkpoint_format", json!("marlin"), format!("is marlin (and not gptq or gptq_v2; {REMEDY})")),
        ("format", json!("gptq_p"), format!("is gptq_p (and not gptq or gptq_v2; {REMEDY})")),
        (
            "is_marlin_format",
            json!(true),
            format!("asks for weights in the order of Marlin's kernels ({REMEDY})"),
        ),
        (
            "dynamic",
            json!({"+:.*down.*": {"bits": 8}}),
            format!("asks for other settings of +:.*down.* ({REMEDY})"),
        ),
        ("bits", json!(5), format!("is 5 (and not 2, 3, 4, 8; {REMEDY})")),
    ] {
        let expected = format!("`quantization_config.{key}` {asks}, which is not supported");
        refused(Fake::gptq(), |fake| fake.settings[key] = value, &expected);
    }
    for (key, value, asks) in [
        ("version", json!("gemv"), format!("is gemv (and not gemm; {REMEDY})")),
        ("version", json!("gemv_fast"), format!("is gemv_fast (and not gemm; {REMEDY})")),
        ("bits", json!(3), format!("is 3 (and not 4; {REMEDY})")),
    ] {
        let expected = format!("`quantization_config.{key}` {asks}, which is not supported");
        refused(Fake::awq(), |fake| fake.settings[key] = value, &expected);
    }
    // Both keys have one meaning.
    let formats = |checkpoint: &str, format: &str| {
        let mut fake = Fake::gptq();
        fake.settings["checkpoint_format"] = json!(checkpoint);
        fake.settings["format"] = json!(format);
        fake.open().map(|_| ())
    };
    assert_eq!((formats("gptq", "gptq"), formats("gptq_v2", "gptq_v2")), (Ok(()), Ok(())));
    for (checkpoint, format) in [("gptq", "gptq_v2"), ("gptq_v2", "gptq")] {
        let expected = format!(
            "`quantization_config.format` is {format}, and `checkpoint_format` is another one, so zero points may be \
             stored in two ways (remove the wrong one of the two keys, {REMEDY}), which is not supported"
        );
        assert_eq!(formats(checkpoint, format), Err(expected));
    }
    // Excluded modules are seen from the tensors.
    let mut excludes = Fake::gptq();
    excludes.settings["dynamic"] = json!({"-:.*lm_head": {}});
    assert!(excludes.open().is_ok());
    let mut upper = Fake::awq();
    upper.settings["version"] = json!("GEMM");
    assert!(upper.open().is_ok());
    for key in ["bits", "group_size"] {
        let missing = format!(
            "`quantization_config.{key}` is missing from the config.json: take the config.json that was published with \
             the weights"
        );
        refused(Fake::gptq(), |fake| fake.settings[key] = Value::Null, &missing);
    }
    let zero = "quantization_config.group_size in the config.json: a group has no weights";
    refused(Fake::gptq(), |fake| fake.settings["group_size"] = json!(0), zero);
}

#[test]
fn parts_that_are_missing_or_disagree_are_refused_by_the_tensor() {
    for part in ["qzeros", "scales"] {
        let missing = format!("{QWEIGHT}its {part} are missing: download the folder again");
        refused(Fake::gptq(), |fake| fake.without(part), &missing);
        refused(Fake::awq(), |fake| fake.without(part), &missing);
    }
    let absent = "tensor model.layers.0.mlp.down_proj.qweight is missing: this file cannot be run, convert the \
                  original model again";
    refused(Fake::gptq(), |fake| fake.without("qweight"), absent);
    let twice = format!("{QWEIGHT}it is stored twice, quantised and as `weight`: download the folder again");
    let weight = (format!("{DOWN}.weight"), "F16", vec![32, 64], ones(32 * 64));
    refused(Fake::gptq(), |fake| fake.tensors.push(weight), &twice);
    let mut unindexed = Fake::gptq();
    unindexed.without("g_idx");
    assert!(unindexed.open().is_ok());

    let types = |part: &'static str, dtype: &'static str| move |fake: &mut Fake| fake.part(part).1 = dtype;
    let packed = format!("{QWEIGHT}it should be packed in I32, and is F32: {REMEDY}");
    refused(Fake::gptq(), types("qweight", "F32"), &packed);
    let packed = format!("{QWEIGHT}its qzeros should be packed in I32, and is F32: {REMEDY}");
    refused(Fake::awq(), types("qzeros", "F32"), &packed);
    let scales = format!("{QWEIGHT}its scales are I16: only F16, BF16 and F32 are supported");
    refused(Fake::gptq(), types("scales", "I16"), &scales);

    let flat = format!("{QWEIGHT}it should be a matrix, and its shape is [256]");
    refused(Fake::gptq(), |fake| fake.reshape("qweight", &[256]), &flat);
    let ragged = format!(
        "{QWEIGHT}its shape is [6, 32], for 32 outputs of 48 inputs: only multiples of 32 inputs, and outputs that \
         fill words, are supported ({REMEDY})"
    );
    refused(Fake::gptq(), |fake| fake.reshape("qweight", &[6, 32]), &ragged);
    for (part, shape, expected) in [("qzeros", [2, 3], [2, 4]), ("scales", [3, 32], [2, 32])] {
        let wrong = format!(
            "{QWEIGHT}the shape of its {part} is {shape:?}, but should be {expected:?} for 32 outputs of 64 inputs at \
             4 bits in groups of 32: take the config.json that was published with the weights"
        );
        refused(Fake::gptq(), |fake| fake.reshape(part, &shape), &wrong);
        refused(Fake::awq(), |fake| fake.reshape(part, &shape), &wrong);
    }
    let index = format!("{QWEIGHT}its g_idx is I32 of the shape [63], but should be I32 of the shape [64]");
    refused(Fake::gptq(), |fake| fake.reshape("g_idx", &[63]), &index);
}

#[test]
fn groups_that_are_not_whole_blocks_or_do_not_exist_are_refused() {
    let groups = |size: usize| {
        move |fake: &mut Fake| {
            fake.settings["group_size"] = json!(size);
            fake.without("g_idx");
            let count = 64usize.div_ceil(size);
            fake.reshape("qzeros", &[count, 4]);
            fake.reshape("scales", &[count, 32]);
        }
    };
    for size in [16, 48] {
        let expected = format!(
            "{QWEIGHT}its groups of {size} inputs are not whole blocks of 32, which is not supported: {REMEDY}"
        );
        refused(Fake::gptq(), groups(size), &expected);
    }
    for group in [2i32, -1] {
        let expected = format!(
            "{QWEIGHT}its g_idx puts input 5 into group {group} of 2: the file is damaged, download it again"
        );
        let damage = |fake: &mut Fake| fake.part("g_idx").3[20..24].copy_from_slice(&group.to_le_bytes());
        refused(Fake::gptq(), damage, &expected);
    }
    // 31 inputs of group 0 and 33 of group 1.
    let expected = format!(
        "{QWEIGHT}its groups of 32 inputs are not whole blocks of 32, which is not supported: {REMEDY}"
    );
    refused(Fake::gptq(), |fake| fake.part("g_idx").3[0] = 1, &expected);
}

#[test]
fn scales_and_zero_points_that_say_nothing_are_refused() {
    for (bits, value) in [(0x7e00u16, "NaN"), (0x7c00, "inf")] {
        let expected = format!(
            "{QWEIGHT}the scale of output 3 in group 1 is {value}: the file is damaged, download it again"
        );
        let damage = |fake: &mut Fake| fake.part("scales").3[70..72].copy_from_slice(&bits.to_le_bytes());
        refused(Fake::gptq(), damage, &expected);
        refused(Fake::awq(), damage, &expected);
    }
    let expected = format!(
        "{QWEIGHT}the zero point of output 2 in group 0 is stored as 15, which tools read as 0 or as 16: take a file \
         in the format gptq_v2, the original, or a GGUF file"
    );
    refused(Fake::gptq(), |fake| fake.part("qzeros").3[1] = 0x7f, &expected);
    // It is plain in the other formats.
    for mut fake in [Fake::gptq(), Fake::awq()] {
        fake.settings["checkpoint_format"] = json!("gptq_v2");
        fake.part("qzeros").3[1] = 0x7f;
        assert!(fake.open().is_ok());
    }
}

/// The first wrong number in the file is reported, however many threads look for one, and one anywhere is found.
#[test]
fn large_weights_are_checked_by_threads_as_by_one() {
    const OUTPUTS: usize = 1 << 18;
    let large = |wrong: &[usize]| {
        let parts = vec![
            ("qweight", "I32", vec![8, OUTPUTS], vec![0; 8 * OUTPUTS * 4]),
            ("qzeros", "I32", vec![2, OUTPUTS / 8], vec![0x77; OUTPUTS]),
            ("scales", "F16", vec![2, OUTPUTS], ones(2 * OUTPUTS)),
        ];
        let mut fake =
            Fake::with(parts, json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true}));
        for at in wrong {
            fake.part("scales").3[2 * at..2 * at + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
        }
        fake.open().map(|_| ())
    };
    let found = |group: usize, output: usize| {
        Err(format!(
            "{QWEIGHT}the scale of output {output} in group {group} is NaN: the file is damaged, download it again"
        ))
    };
    for output in [0, OUTPUTS / 2 - 1, OUTPUTS / 2, OUTPUTS - 1] {
        assert_eq!(large(&[output]), found(0, output));
        assert_eq!(large(&[OUTPUTS + output, OUTPUTS + output / 2]), found(1, output / 2));
        assert_eq!(large(&[OUTPUTS, output]), found(0, output));
    }
    assert_ne!(large(&[]), found(0, 0));
}

proptest! {
    #[test]
    fn arbitrary_shapes_and_settings_never_panic(
        awq: bool,
        shapes in prop::collection::vec(prop::collection::vec(0usize..40, 1..3), 4),
        bits in prop::sample::select(vec![2u64, 3, 4, 8, 5, u64::MAX]),
        group in prop::sample::select(vec![-1i64, 0, 1, 31, 32, 64, 96, 128, i64::MAX]),
        version: bool,
        bytes: [u8; 4],
    ) {
        let mut fake = if awq { Fake::awq() } else { Fake::gptq() };
        for ((_, dtype, old, data), shape) in fake.tensors.iter_mut().zip(shapes) {
            let size = if *dtype == "I32" { 4 } else { 2 };
            *data = bytes.into_iter().cycle().take(shape.iter().product::<usize>() * size).collect();
            *old = shape;
        }
        fake.settings["bits"] = json!(bits);
        fake.settings["group_size"] = json!(group);
        if version && !awq {
            fake.settings["checkpoint_format"] = json!("gptq_v2");
        }
        if let Ok(model) = fake.open() {
            for tensor in model.tensors() {
                let planes = model.plane_bytes(tensor);
                prop_assert_eq!(planes.iter().map(|plane| plane.len()).sum::<usize>(), tensor.stored_bytes());
                prop_assert_eq!(
                    tensor.stored_bytes(),
                    tensor.rows() * tensor.dtype.row_bytes(tensor.cols()).unwrap()
                );
            }
        }
    }
}

impl Fake {
    /// `ffn_down` in integers of 4 bits: 32 rows of 64, in groups of 32 with zero points.
    fn integers() -> Fake {
        let parts = vec![
            ("weight_packed", "I32", vec![32, 8], vec![0x5a; 32 * 8 * 4]),
            ("weight_scale", "F16", vec![32, 2], ones(64)),
            ("weight_zero_point", "I32", vec![4, 2], vec![0x87; 4 * 2 * 4]),
            (
                "weight_shape",
                "I64",
                vec![2],
                [32i64, 64].iter().flat_map(|side| side.to_le_bytes()).collect(),
            ),
        ];
        let weights =
            json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false});
        Fake::with(
            parts,
            json!({
                "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            }),
        )
    }

    /// `ffn_down` in FP8: 32 rows of 64, with one scale.
    fn fp8() -> Fake {
        let parts = vec![
            ("weight", "F8_E4M3", vec![32, 64], vec![0x38; 32 * 64]),
            ("weight_scale", "BF16", vec![1], vec![0x00, 0x40]),
        ];
        Fake::with(parts, json!({"quant_method": "fp8", "activation_scheme": "static"}))
    }

    fn compressed() -> Fake {
        let weights = json!({"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true});
        let mut fake = Fake::fp8();
        fake.settings = json!({
            "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head", "re:.*gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        });
        fake
    }

    fn scales(&mut self, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) {
        let (_, old, old_shape, old_bytes) = self.part("weight_scale");
        (*old, *old_shape, *old_bytes) = (dtype, shape.to_vec(), bytes);
    }

    /// The first element of each row.
    fn firsts(&self) -> Vec<f32> {
        let model = self.open().unwrap();
        let down = model.tensor("blk.0.ffn_down.weight").unwrap();
        let mut row = [0.0; 64];
        let first = |index| {
            dequantize_nth(down.dtype, model.plane_bytes(down), index, &mut row).unwrap();
            row[0]
        };
        (0..32).map(first).collect()
    }
}

#[test]
fn scales_of_fp8_are_read_in_every_type_and_shape() {
    assert_eq!(Fake::fp8().firsts(), [2.0; 32]);
    assert_eq!(Fake::compressed().firsts(), [2.0; 32]);
    let with = |dtype: &'static str, shape: &[usize], bytes: Vec<u8>| {
        let mut fake = Fake::fp8();
        fake.scales(dtype, shape, bytes);
        fake.firsts()
    };
    assert_eq!(with("F32", &[], 3.5f32.to_le_bytes().to_vec()), [3.5; 32]);
    assert_eq!(with("F16", &[1, 1], vec![0x00, 0x3c]), [1.0; 32]);
    // A power of two, as an exponent.
    assert_eq!(with("F8_E8M0", &[1, 1], vec![124]), [0.125; 32]);
    assert_eq!(with("F8_E8M0", &[1], vec![0]), [2f32.powi(-127); 32]);
    let rows: Vec<f32> = (0..32).map(|row| row as f32).collect();
    let bytes: Vec<u8> = rows.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    assert_eq!(with("F32", &[32, 1], bytes.clone()), rows);
    assert_eq!(with("F32", &[32], bytes), rows);
}

#[test]
fn blocks_of_scales_reach_over_128_rows_and_columns() {
    let mut fake = Fake::fp8();
    fake.tensors.retain(|tensor| !tensor.0.contains("embed") && !tensor.0.contains("norm"));
    let scales: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let (_, _, shape, bytes) = fake.part("weight");
    (*shape, *bytes) = (vec![130, 200], vec![0x38; 130 * 200]);
    fake.scales("F32", &[2, 2], scales);
    fake.tensors[0].0 = "model.embed_tokens.weight".into();
    fake.tensors[1].0 = "model.embed_tokens.weight_scale_inv".into();
    let model = fake.open_with(200).unwrap();
    let embedding = model.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.stored_bytes(), 130 * (200 + 2 * 4));
    let mut row = [0.0; 200];
    for (index, [left, right]) in [(0, [1.0, 2.0]), (127, [1.0, 2.0]), (128, [3.0, 4.0]), (129, [3.0, 4.0])] {
        dequantize_nth(embedding.dtype, model.plane_bytes(embedding), index, &mut row).unwrap();
        assert_eq!([row[0], row[127], row[128], row[199]], [left, left, right, right]);
    }
}

const PACKED: &str = "tensor model.layers.0.mlp.down_proj.weight_packed: ";

#[test]
fn integers_are_unpacked_by_hand() {
    // Codes alternate between 10 and 5, zero points of rows between 7 and 8.
    let mut fake = Fake::integers();
    let element = |fake: &Fake, row: usize| {
        let model = fake.open().unwrap();
        let down = model.tensor("blk.0.ffn_down.weight").unwrap();
        let mut values = [0.0; 64];
        dequantize_nth(down.dtype, model.plane_bytes(down), row, &mut values).unwrap();
        [values[0], values[1], values[63]]
    };
    assert_eq!((element(&fake, 0), element(&fake, 31)), ([3.0, -2.0, -2.0], [2.0, -3.0, -3.0]));
    fake.without("weight_zero_point");
    assert_eq!((element(&fake, 0), element(&fake, 31)), ([2.0, -3.0, -3.0], [2.0, -3.0, -3.0]));
}

#[test]
fn integers_of_other_kinds_and_damaged_ones_are_refused() {
    for (key, value, asks) in [
        ("num_bits", json!(3), format!("type` is int of 3 bits (and not int of 2, 4 or 8; {REMEDY})")),
        ("type", json!("float"), format!("type` is float of 4 bits (and not int of 2, 4 or 8; {REMEDY})")),
        ("strategy", json!("block"), format!("strategy` is block (and not group or channel; {REMEDY})")),
    ] {
        let expected =
            format!("`quantization_config.config_groups.group_0.weights.{asks}, which is not supported");
        let change =
            |fake: &mut Fake| fake.settings["config_groups"]["group_0"]["weights"][key] = value.clone();
        refused(Fake::integers(), change, &expected);
    }
    let other = json!({"targets": ["re:.*down"], "weights": {"num_bits": 8, "type": "int"}});
    let expected = format!(
        "`quantization_config.config_groups.group_1.weights.num_bits` is 8, and other modules have other numbers of \
         bits ({REMEDY}), which is not supported"
    );
    refused(Fake::integers(), |fake| fake.settings["config_groups"]["group_1"] = other, &expected);
    let expected = format!(
        "`quantization_config.config_groups.group_0.format` is another one than that of the folder ({REMEDY}), which \
         is not supported"
    );
    let change =
        |fake: &mut Fake| fake.settings["config_groups"]["group_0"]["format"] = json!("float-quantized");
    refused(Fake::integers(), change, &expected);

    let missing = format!("{PACKED}its weight_scale is missing: download the folder again");
    refused(Fake::integers(), |fake| fake.without("weight_scale"), &missing);
    let absent = "tensor model.layers.0.mlp.down_proj.weight_packed is missing: this file cannot be run, convert the \
                  original model again";
    refused(Fake::integers(), |fake| fake.without("weight_packed"), absent);
    let ordered =
        format!("{PACKED}its inputs are in another order than the model's (weight_g_idx): {REMEDY}");
    let index = (format!("{DOWN}.weight_g_idx"), "I32", vec![64], vec![0; 256]);
    refused(Fake::integers(), |fake| fake.tensors.push(index), &ordered);
    let shape = format!(
        "{PACKED}it has 32 rows of 8 words, for weights of the shape [32, 80] at 4 bits: only rows of a multiple of \
         32 weights, all of one number of bits, are supported ({REMEDY})"
    );
    refused(Fake::integers(), |fake| fake.part("weight_shape").3[8] = 80, &shape);
    let scales = format!(
        "{PACKED}the shape of its scales is [32, 3], which are no groups of 32 rows of 64 weights: {REMEDY}"
    );
    refused(Fake::integers(), |fake| fake.reshape("weight_scale", &[32, 3]), &scales);
    let narrow = format!(
        "{PACKED}its groups of 16 inputs are not whole blocks of 32, which is not supported: {REMEDY}"
    );
    let finer = |fake: &mut Fake| {
        fake.without("weight_zero_point");
        fake.reshape("weight_scale", &[32, 4]);
    };
    refused(Fake::integers(), finer, &narrow);
    let zeros = format!(
        "{PACKED}its weight_zero_point is I32 of the shape [4, 3], but should be I32 of the shape [4, 2]: {REMEDY}"
    );
    refused(Fake::integers(), |fake| fake.reshape("weight_zero_point", &[4, 3]), &zeros);
    let nan =
        format!("{PACKED}the scale of output 1 in group 1 is NaN: the file is damaged, download it again");
    refused(Fake::integers(), |fake| fake.part("weight_scale").3[6..8].copy_from_slice(&[0, 0x7e]), &nan);
}

const WEIGHT: &str = "tensor model.layers.0.mlp.down_proj.weight: ";

#[test]
fn fp8_of_other_kinds_is_refused_by_name() {
    for (key, value, asks) in [
        ("fmt", json!("e5m2"), format!("is e5m2 (and not e4m3; {REMEDY})")),
        ("weight_block_size", json!([64, 128]), format!("is [64,128] (and not [128, 128]; {REMEDY})")),
    ] {
        let expected = format!("`quantization_config.{key}` {asks}, which is not supported");
        refused(Fake::fp8(), |fake| fake.settings[key] = value, &expected);
    }
    for format in ["int-quantized", "nvfp4-pack-quantized", "marlin-24", "mxfp8-quantized"] {
        let expected = format!(
            "`quantization_config.format` is {format} (and not float-quantized or pack-quantized; {REMEDY}), which is \
             not supported"
        );
        refused(Fake::compressed(), |fake| fake.settings["format"] = json!(format), &expected);
    }
    for (key, value, asks) in [
        ("num_bits", json!(4), format!("type` is float of 4 bits (and not float of 8; {REMEDY})")),
        ("type", json!("int"), format!("type` is int of 8 bits (and not float of 8; {REMEDY})")),
        ("symmetric", json!(false), format!("symmetric` is false ({REMEDY})")),
        (
            "strategy",
            json!("tensor_group"),
            format!("strategy` is tensor_group (and not tensor, channel or block; {REMEDY})"),
        ),
        (
            "block_structure",
            json!("64x64"),
            format!("block_structure` is \\\"64x64\\\" (and not [128, 128]; {REMEDY})"),
        ),
    ] {
        let expected =
            format!("`quantization_config.config_groups.group_0.weights.{asks}, which is not supported");
        let change =
            |fake: &mut Fake| fake.settings["config_groups"]["group_0"]["weights"][key] = value.clone();
        refused(Fake::compressed(), change, &expected);
    }
    let expected = format!(
        "`quantization_config.sparsity_config.format` is sparse-24-bitmask (and not dense; {REMEDY}), which is not \
         supported"
    );
    let sparse = json!({"format": "sparse-24-bitmask"});
    refused(Fake::compressed(), |fake| fake.settings["sparsity_config"] = sparse, &expected);
    let expected = format!(
        "`quantization_config.transform_config` asks for transforms of weights and activations ({REMEDY}), which is \
         not supported"
    );
    let rotated = json!({"config_groups": {"u": {"type": "hadamard"}}});
    refused(Fake::compressed(), |fake| fake.settings["transform_config"] = rotated, &expected);
}

#[test]
fn scales_of_fp8_that_are_missing_or_damaged_are_refused() {
    let missing = format!("{WEIGHT}its weight_scale is missing: download the folder again");
    refused(Fake::fp8(), |fake| fake.without("weight_scale"), &missing);
    let absent = "tensor model.layers.0.mlp.down_proj.weight is missing: this file cannot be run, convert the original \
                  model again";
    refused(Fake::fp8(), |fake| fake.without("weight"), absent);
    let both = format!("{WEIGHT}it has both weight_scale and weight_scale_inv: {REMEDY}");
    let more = (format!("{DOWN}.weight_scale_inv"), "BF16", vec![1], vec![0, 0]);
    refused(Fake::fp8(), |fake| fake.tensors.push(more), &both);
    let shape = format!(
        "{WEIGHT}the shape of its scales is [3], but should be [1], [32, 1] or [1, 1]: only scales of tensors, rows, \
         and blocks of 128 by 128 are supported ({REMEDY})"
    );
    refused(Fake::fp8(), |fake| fake.scales("BF16", &[3], vec![0; 6]), &shape);
    let kind = format!("{WEIGHT}its scales are I16: only F16, BF16 and F32 are supported");
    refused(Fake::fp8(), |fake| fake.scales("I16", &[1], vec![0; 2]), &kind);
    let nan = format!("{WEIGHT}its scale 0 is NaN: the file is damaged, download it again");
    refused(Fake::fp8(), |fake| fake.scales("BF16", &[1], vec![0xc0, 0x7f]), &nan);
    refused(Fake::fp8(), |fake| fake.scales("F8_E8M0", &[1], vec![255]), &nan);
    let plain = format!(
        "tensor model.layers.0.mlp.down_proj.weight_scale: it belongs to a weight that is F16, not FP8: {REMEDY}"
    );
    let unpacked = |fake: &mut Fake| {
        let (_, dtype, _, bytes) = fake.part("weight");
        (*dtype, *bytes) = ("F16", ones(32 * 64));
    };
    refused(Fake::fp8(), unpacked, &plain);
    let flat = format!("{WEIGHT}it is FP8 and should be a matrix, and its shape is [2048]");
    refused(Fake::fp8(), |fake| fake.part("weight").2 = vec![2048], &flat);
    let unsaid = format!(
        "{WEIGHT}it is packed (F8_E4M3), but config.json has no `quantization` or `quantization_config`"
    );
    refused(Fake::fp8(), |fake| fake.settings = Value::Null, &unsaid);
}
