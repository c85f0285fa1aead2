//! GGUF vocabularies and `tokenizer.json` files of real models: the ids are those of the library.

use akunu_tokenizer::{
    EncodeOptions, HfTokenizer, NativeTokenizer, StreamDecoder, Tokenizer, from_gguf, tokenizer_json,
};

const WHOLE: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

fn streamed(tokenizer: &dyn Tokenizer, ids: &[u32]) -> String {
    let (mut decoder, mut out) = (StreamDecoder::new(), String::new());
    ids.iter().for_each(|&id| decoder.push(tokenizer, id, &mut out));
    decoder.finish(&mut out);
    out
}

/// Texts in many scripts, cut and joined pseudorandomly, but identically on every machine.
fn corpus() -> Vec<String> {
    const PARTS: [&str; 38] = [
        "The quick brown fox",
        "jumps over",
        "lazy dogs.",
        "It's what we'll say, isn't it?",
        "HTTPServer2000",
        "3.14159",
        "12345678",
        "Straße",
        "naïve café",
        "Ελληνικά κείμενα",
        "Быстрая лиса",
        "съешь ещё",
        "中文文本测试",
        "日本語の文章です。",
        "かな カナ",
        "한국어 문장",
        "العربية لغة",
        "עברית",
        "हिन्दी पाठ",
        "ไทยไม่มีช่องว่าง",
        "Tiếng Việt",
        "😀👍🏽",
        "👨‍👩‍👧‍👦",
        "e\u{301}",
        "½ ⅷ ²",
        "…—“quoted”",
        "fn main() { println!(\"hi\"); }",
        "\n",
        "\n\n",
        "\t",
        "  ",
        "    ",
        "x = y+1;",
        "<b>tag</b>",
        "@user #tag",
        "a_b_c",
        "\u{a0}",
        "C:\\dir\\file.txt",
    ];
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut texts: Vec<String> = PARTS.iter().map(|part| part.to_string()).collect();
    for _ in 0..400 {
        let mut text = String::new();
        for _ in 0..1 + next(8) {
            text.push_str(PARTS[next(PARTS.len())]);
            text.push_str(["", " ", "", "\n", " "][next(5)]);
        }
        texts.push(text);
    }
    texts
}

/// Our tokenizer of a GGUF vocabulary, and the `tokenizers` crate with the same vocabulary as JSON.
fn real_vocabularies_agree(gguf: &str, json: &str) {
    let test = format!("{gguf} and {json} agree");
    let Some(gguf) = akunu_testing::data(&test, &format!("vocab/{gguf}.gguf")) else { return };
    let Some(json) = akunu_testing::data(&test, &format!("tokenizers/{json}.json")) else { return };
    let native: NativeTokenizer = from_gguf(akunu_format::Gguf::open(&gguf).unwrap().metadata()).unwrap();
    let library = crate::library(&std::fs::read(&json).unwrap());
    let ours = HfTokenizer::open(&json).unwrap();
    let (texts, mut wrong) = (corpus(), Vec::new());
    for text in &texts {
        let expected = library.encode(text.as_str(), true).unwrap().get_ids().to_vec();
        let ids = [native.encode(text, WHOLE).unwrap(), ours.encode(text, WHOLE).unwrap()];
        let shown = library.decode(&expected, true).unwrap();
        let decoded = streamed(&ours, &expected);
        if ids[0] != expected || ids[1] != expected || decoded != shown {
            wrong.push(format!("{text:?}: {ids:?} for {expected:?}; {decoded:?} for {shown:?}"));
        }
    }
    println!("{test}: {} of {} texts", texts.len() - wrong.len(), texts.len());
    assert!(wrong.is_empty(), "{} wrong: {}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

#[test]
fn llama2_agrees_with_tokenizers_on_many_languages() {
    real_vocabularies_agree("llama-spm", "llama2");
}

#[test]
fn gpt2_agrees_with_tokenizers_on_many_languages() {
    real_vocabularies_agree("gpt-2", "gpt2");
}

#[test]
fn bert_agrees_with_tokenizers_on_many_languages() {
    real_vocabularies_agree("bert-bge", "bert-base-uncased");
}

/// The library with what is written of a GGUF vocabulary.
#[test]
fn written_files_agree() {
    for name in ["gpt-2", "llama-bpe", "qwen2"] {
        let Some(path) = akunu_testing::data("written files agree", &format!("vocab/{name}.gguf")) else {
            continue;
        };
        let file = akunu_format::Gguf::open(&path).unwrap();
        let native = from_gguf(file.metadata()).unwrap();
        let library = crate::library(&tokenizer_json(file.metadata()).unwrap());
        let inside = EncodeOptions { add_special: false, ..WHOLE };
        for text in corpus() {
            let expected = library.encode(text.as_str(), false).unwrap().get_ids().to_vec();
            assert_eq!(native.encode(&text, inside).unwrap(), expected, "{name}: {text:?}");
        }
    }
}
