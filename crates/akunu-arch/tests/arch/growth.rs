//! Configurations are read in time and memory that grow with their size.
#![allow(clippy::unwrap_used)] // in helpers of tests

use akunu_arch::{GgufModel, SafeTensorsModel};
use akunu_format::{Array, DType, GgufWriter, Metadata, Region, Strings, TensorSpec, Value};
use akunu_testing::{Cost, MeasuringAllocator, assert_growth};

#[global_allocator]
static ALLOCATOR: MeasuringAllocator = MeasuringAllocator;

fn each(count: usize, make: impl Fn(usize) -> String) -> String {
    (0..count).map(make).collect::<Vec<_>>().join(",")
}

/// A configuration and the SafeTensors file of its tensors.
struct Folder {
    config: String,
    tensors: Vec<u8>,
}

impl Folder {
    /// So many layers with a norm each, with more fields of the configuration, and more tensors.
    fn new(layers: usize, fields: &str, more: &[String]) -> Folder {
        let names = (0..layers).map(|layer| format!("model.layers.{layer}.input_layernorm.weight"));
        let names: Vec<String> = names.chain(more.iter().cloned()).collect();
        let bytes = 2 * 32 * (names.len() + 5);
        let entry = |(index, name): (usize, &String)| {
            let start = 2 * 32 * (index + 5);
            format!(r#""{name}":{{"dtype":"BF16","shape":[32],"data_offsets":[{start},{}]}}"#, start + 64)
        };
        let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
        let header = format!(
            r#"{{"model.embed_tokens.weight":{{"dtype":"BF16","shape":[5,32],"data_offsets":[0,320]}},{}}}"#,
            entries.join(",")
        );
        let mut tensors = (header.len() as u64).to_le_bytes().to_vec();
        tensors.extend(header.as_bytes());
        tensors.resize(tensors.len() + bytes, 0);
        let config = format!(
            r#"{{"model_type":"llama","hidden_size":32,"num_hidden_layers":{layers},"num_attention_heads":4,
            "num_key_value_heads":2,"intermediate_size":64{fields}}}"#
        );
        Folder { config, tensors }
    }

    fn read(&self) -> Result<SafeTensorsModel, String> {
        let region = Region::from_vec(self.tensors.clone());
        SafeTensorsModel::from_region(region, &self.config).map_err(|error| error.to_string())
    }
}

#[test]
fn folders() {
    type Make = fn(usize) -> Folder;
    let folders: [(&str, Make); 9] = [
        ("layers", |n| Folder::new(n / 32, "", &[])),
        ("fields that nobody knows", |n| {
            let fields = each(n, |i| format!(r#""field {i}":{i}"#));
            Folder::new(1, &format!(",{fields}"), &[])
        }),
        ("ids that end a text", |n| {
            let ids = each(n, |i| i.to_string());
            Folder::new(1, &format!(r#","vocab_size":5,"eos_token_id":[{ids}]"#), &[])
        }),
        ("architectures", |n| {
            let names = each(n, |i| format!(r#""Name{i}""#));
            Folder::new(1, &format!(r#","architectures":[{names}]"#), &[])
        }),
        ("kinds of layers", |n| {
            let kinds = each(n / 32, |i| format!(r#""{}_attention""#, ["sliding", "full"][i % 2]));
            let fields = format!(r#","sliding_window":16,"layer_types":[{kinds}]"#);
            Folder::new(n / 32, &fields, &[])
        }),
        ("factors of positions", |n| {
            let factors = each(n, |_| "1.5".into());
            let scaling =
                format!(r#"{{"rope_type":"longrope","short_factor":[{factors}],"long_factor":[{factors}]}}"#);
            Folder::new(1, &format!(r#","head_dim":{},"rope_scaling":{scaling}"#, 2 * n), &[])
        }),
        ("labels", |n| {
            let labels = each(n, |i| format!(r#""{i}":"LABEL_{i}""#));
            Folder::new(1, &format!(r#","id2label":{{{labels}}}"#), &[])
        }),
        ("modules that are not converted", |n| {
            let names = each(n, |i| format!(r#""model.layers.{i}.mlp""#));
            let fields = format!(
                r#","quantization_config":{{"quant_method":"x","modules_to_not_convert":[{names}]}}"#
            );
            Folder::new(1, &fields, &[])
        }),
        ("tensors that nobody knows", |n| {
            let names: Vec<String> = (0..n / 8).map(|i| format!("other.{i}.weight")).collect();
            Folder::new(1, "", &names)
        }),
    ];
    for (what, make) in folders {
        let (folder, cost) = assert_growth(what, 1 << 11, make, Folder::read);
        println!("{what}: {} bytes, {cost:?}", folder.config.len() + folder.tensors.len());
        let is_bad = ["modules that are not converted", "tensors that nobody knows"].contains(&what);
        assert_eq!(folder.read().is_err(), is_bad, "{what}: {:?}", folder.read().err());
    }
}

/// A GGUF file of so many layers with a norm each, more metadata and more tensors.
fn gguf(layers: usize, more: impl FnOnce(&mut Metadata), names: impl Iterator<Item = String>) -> Vec<u8> {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::String("llama".into()));
    for (key, value) in [
        ("context_length", 128),
        ("embedding_length", 32),
        ("block_count", layers as u32),
        ("feed_forward_length", 64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        metadata.insert(format!("llama.{key}"), Value::U32(value));
    }
    metadata.insert("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    more(&mut metadata);
    let norms = (0..layers).map(|layer| format!("blk.{layer}.attn_norm.weight"));
    let mut specs = vec![TensorSpec::new("token_embd.weight", DType::F32, [3, 32])];
    specs.extend(norms.chain(names).map(|name| TensorSpec::new(name, DType::F32, [32])));
    let mut bytes = Vec::new();
    let mut writer = GgufWriter::new(&mut bytes, &metadata, specs).unwrap();
    while let Some(size) = writer.next_spec().map(|spec| spec.bytes().unwrap()) {
        writer.tensor(|out| out.write_all(&vec![0; size])).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

#[test]
fn gguf_files() {
    type Make = fn(usize) -> Vec<u8>;
    let files: [(&str, Make); 6] = [
        ("layers", |n| gguf(n / 32, |_| (), std::iter::empty())),
        ("heads of each layer", |n| {
            let heads = Value::Array(Array::U32(vec![2; n / 32]));
            let more =
                |metadata: &mut Metadata| drop(metadata.insert("llama.attention.head_count_kv", heads));
            gguf(n / 32, more, std::iter::empty())
        }),
        ("keys that nobody knows", |n| {
            let more = |metadata: &mut Metadata| {
                (0..n / 8).for_each(|i| drop(metadata.insert(format!("llama.key.{i}"), Value::U32(1))));
            };
            gguf(1, more, std::iter::empty())
        }),
        ("tokens", |n| {
            let tokens: Strings = (0..n).map(|i| i.to_string()).collect();
            let more = |metadata: &mut Metadata| {
                drop(metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Strings(tokens))));
            };
            gguf(1, more, std::iter::empty())
        }),
        ("tensors that nobody knows", |n| gguf(1, |_| (), (0..n / 8).map(|i| format!("other.{i}.weight")))),
        ("tensors of experts", |n| gguf(1, |_| (), (0..n / 8).map(|i| format!("blk.0.ffn_gate.{i}.weight")))),
    ];
    for (what, make) in files {
        let read = |bytes: &Vec<u8>| GgufModel::from_region(Region::from_vec(bytes.clone()));
        let (file, cost) = assert_growth(what, 1 << 12, make, read);
        println!("{what}: {} bytes, {cost:?}", file.len());
        let is_bad = ["tensors that nobody knows", "tensors of experts"].contains(&what);
        assert_eq!(read(&file).is_err(), is_bad, "{what}: {:?}", read(&file).err());
    }
}

/// Families in which some layers are not rotated have a list of all of them.
#[test]
fn layers_that_a_file_does_not_have_take_no_memory() {
    let as_smollm3 = |metadata: &mut Metadata| {
        let llama: Vec<_> = metadata.iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
        for (key, value) in llama {
            metadata.insert(key.replace("llama.", "smollm3."), value);
        }
        metadata.insert("general.architecture", Value::String("smollm3".into()));
        metadata.insert("smollm3.block_count", Value::U32(1 << 28));
    };
    let region = Region::from_vec(gguf(1, as_smollm3, std::iter::empty()));
    let mut error = String::new();
    let cost = Cost::of(|| error = GgufModel::from_region(region).unwrap_err().to_string());
    assert!(error.contains("268435456 layers, but the file has only 2 tensors"), "{error}");
    assert!(cost.peak < 1 << 20, "{cost:?}");
}
