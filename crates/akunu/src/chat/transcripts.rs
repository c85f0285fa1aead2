//! Answers in the forms of real models, from `testdata/transcripts`: read as a whole and by character, and held to the
//! grammar of calls.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use akunu_tokenizer::chat::ChatTemplate;
use serde_json::{Map, Value as Json, json};

use super::conversation::message;
use super::{AnswerDelta, AnswerOptions, AnswerReader, CallProgress, ChatFormat, Tags, ToolChoice};
use crate::constraint::{Constraint, Constraints, Cursor};
use crate::{GenerateOptions, Model};

/// The transcripts of a family, and the templates whose models write so.
struct Family {
    name: String,
    /// A description and the text of each.
    templates: Vec<(String, String)>,
    transcripts: Vec<Transcript>,
}

struct Transcript {
    title: String,
    /// Whether the grammar accepts it.
    is_held: bool,
    variables: Map<String, Json>,
    text: String,
    expected: Json,
}

fn tools() -> Vec<Json> {
    let tool = |name: &str, properties: Json, required: Json| {
        let parameters = json!({ "type": "object", "properties": properties, "required": required });
        json!({ "type": "function", "function": { "name": name, "description": "x", "parameters": parameters } })
    };
    let text = json!({ "type": "string" });
    let unit = json!({ "type": "string", "enum": ["celsius", "fahrenheit"] });
    vec![
        tool(
            "weather",
            json!({ "city": text, "unit": unit, "days": { "type": "integer" } }),
            json!(["city"]),
        ),
        tool(
            "write_file",
            json!({ "path": text, "text": text, "mode": { "type": "object" }, "force": { "type": "boolean" } }),
            json!(["path", "text"]),
        ),
        tool("now", json!({}), json!([])),
    ]
}

fn family(path: &Path, data: &Path) -> Family {
    let name = path.file_stem().unwrap().to_string_lossy().to_string();
    let file = std::fs::read_to_string(path).unwrap();
    let (head, blocks) = file.split_once("\n## ").unwrap();
    let template = |line: &str| match line.split_once(": ").unwrap() {
        ("template", file) => (file.to_string(), std::fs::read_to_string(data.join(file)).unwrap()),
        ("source", source) => ("source".into(), source.replace("\\n", "\n")),
        other => panic!("{name}: {other:?}"),
    };
    let templates = head.lines().map(template).collect();
    let transcripts = blocks.split("\n## ").map(|block| transcript(&name, block)).collect();
    Family { name, templates, transcripts }
}

fn transcript(family: &str, block: &str) -> Transcript {
    let (title, rest) = block.split_once('\n').unwrap();
    let (text, expected) = rest.rsplit_once("\n=> ").unwrap();
    let (title, variables) = title.split_at(title.find(" {").unwrap_or(title.len()));
    let json = |text: &str| {
        serde_json::from_str::<Json>(text).unwrap_or_else(|error| panic!("{family}, {title}: {error}"))
    };
    Transcript {
        title: title.into(),
        is_held: !title.ends_with("(not held)"),
        variables: if variables.is_empty() {
            Map::new()
        } else {
            json(variables).as_object().unwrap().clone()
        },
        text: text.into(),
        expected: json(expected),
    }
}

/// A model whose tokens are bytes, which is all that is needed of it here.
struct Bytes {
    model: Arc<Model>,
    constraints: Constraints,
    /// The token of the byte 0, which those of other bytes follow, and the one that ends answers.
    first: u32,
    end: u32,
}

impl Bytes {
    fn new() -> Bytes {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        akunu_fixtures::scripted::write(&path, None, &[]);
        let model = Arc::new(Model::read(&path).unwrap());
        let tokenizer = model.tokenizer().unwrap();
        let id = |text: &str| (0..u32::MAX).find(|id| tokenizer.token_text(*id) == Some(text)).unwrap();
        let (first, end) = (id("<0x00>"), id("<|im_end|>"));
        Bytes { constraints: Constraints::new(model.clone()), model, first, end }
    }

    /// Where a grammar stops a text, if it does. `ending`: what may follow an answer, and ends it.
    fn held(&self, constraint: &Constraint, text: &str, ending: &str) -> Result<(), String> {
        let vocab = constraint.vocab_size();
        let mut cursor = Cursor::new(constraint, 0, &[self.end], false);
        let mut history = Vec::new();
        let is_in = |words: &[u32], id: u32| words[id as usize / 32] >> (id % 32) & 1 == 1;
        for (at, byte) in text.bytes().enumerate() {
            let allowed = cursor.allowed(&history, vocab).map_err(|error| error.to_string())?;
            let rest = &text.as_bytes()[at..];
            if !ending.is_empty() && rest == ending.as_bytes() && is_in(allowed, self.end) {
                return Ok(());
            }
            if !is_in(allowed, self.first + u32::from(byte)) {
                return Err(format!("stops before {:?}", String::from_utf8_lossy(rest)));
            }
            history.push(self.first + u32::from(byte));
        }
        if cursor.is_over(&history) {
            return Ok(());
        }
        let allowed = cursor.allowed(&history, vocab).map_err(|error| error.to_string())?;
        if is_in(allowed, self.end) { Ok(()) } else { Err("may not end".into()) }
    }
}

/// The answer as one message, after checking that what is passed on of calls agrees with the calls.
fn read(mut reader: AnswerReader, pieces: impl Iterator<Item = String>) -> Json {
    let mut deltas: Vec<AnswerDelta> = Vec::new();
    for piece in pieces {
        deltas.extend(reader.push(&piece, 1, &mut |_| ControlFlow::Continue(())).0);
    }
    deltas.extend(reader.finish(&mut |_| ControlFlow::Continue(())));
    let text = |of: fn(&AnswerDelta) -> &str| deltas.iter().map(of).collect::<String>().trim().to_string();
    let calls: Vec<Json> = deltas
        .iter()
        .flat_map(|delta| &delta.calls)
        .map(|call| json!([call.name, call.object().unwrap()]))
        .collect();
    let mut begun: Vec<(String, String)> = Vec::new();
    for progress in deltas.iter().flat_map(|delta| &delta.progress) {
        match progress {
            CallProgress::Begun(name) => begun.push((name.clone(), String::new())),
            CallProgress::Arguments(more) => begun.last_mut().unwrap().1.push_str(more),
            CallProgress::Done => {}
            CallProgress::Cut => panic!("a call is cut: {deltas:?}"),
        }
    }
    let object = |text: &str| serde_json::from_str::<Json>(text).unwrap();
    let passed_on: Vec<Json> =
        begun.iter().map(|(name, arguments)| json!([name, object(arguments)])).collect();
    assert_eq!(calls, passed_on);
    json!({ "reasoning": text(|delta| &delta.reasoning), "content": text(|delta| &delta.answer), "calls": calls })
}

/// What is wrong with a transcript under a template.
fn wrong(bytes: &Bytes, format: &ChatFormat, transcript: &Transcript) -> Option<String> {
    let messages = [message("user", "What is the weather?")];
    let prompt = format.prompt(&messages, Some(&tools()), &transcript.variables).unwrap();
    let answer = |tool_choice: ToolChoice| {
        let answer = AnswerOptions { tools: Some(tools()), tool_choice, ..AnswerOptions::default() };
        let mut options = GenerateOptions::default();
        let reader = format.answer(&prompt.text, &answer, &bytes.constraints, &mut options).unwrap();
        (reader, options.constraint.unwrap())
    };
    // Some prompts end with what opens the reasoning.
    let tags = Tags::of_template(format.template().source());
    let text = match transcript.text.strip_prefix(tags.open) {
        Some(text) if tags.opened_by(&prompt.text) => text,
        _ => &transcript.text,
    };
    let mut expected = json!({ "reasoning": "", "content": "", "calls": [] });
    expected.as_object_mut().unwrap().extend(transcript.expected.as_object().unwrap().clone());
    let (reader, constraint) = answer(ToolChoice::Auto);
    let whole = read(reader.clone(), [text.to_string()].into_iter());
    let streamed = read(reader, text.chars().map(String::from));
    if whole != expected || streamed != whole {
        return Some(format!("is {whole}, streamed {streamed}, and not {expected}"));
    }
    let held = |constraint| bytes.held(constraint, text, format.marks().ending);
    let error = transcript.is_held.then(|| held(&constraint).err()).flatten();
    if let Some(error) = error {
        return Some(format!("is not held: {error}"));
    }
    let has_calls = whole["calls"] != json!([]) && whole["content"] == "";
    let (_, constraint) = answer(ToolChoice::Required);
    let may_begin = !transcript.title.ends_with("(not at once)");
    let error = (transcript.is_held && may_begin && has_calls).then(|| held(&constraint).err()).flatten();
    error.map(|error| format!("is not held where calls are required: {error}"))
}

#[test]
fn conversations_with_tools_have_the_template_for_them() {
    const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    const KNOWN: &str = "[TOOLS]{{ tools | tojson }}[/TOOLS]{% for m in messages %}{{ m.content }}{% endfor %}\
                         {# [TOOL_CALLS] [ARGS] #}";
    const UNKNOWN: &str =
        "Write 'Action:' {{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}";
    let bytes = Bytes::new();
    let template = |source: &str| ChatTemplate::new(source, None, None).unwrap();
    let format = |other: &str| {
        let template = template(PLAIN).with_one_for_tools(Some(template(other)));
        ChatFormat::new(&bytes.model, template).unwrap()
    };
    let asked = [message("user", "When?")];
    let prompt =
        |format: &ChatFormat, tools: Option<&[Json]>| format.prompt(&asked, tools, &Map::new()).unwrap().text;
    let answer = |format: &ChatFormat, prompt: &str, text: &str| {
        let answer = AnswerOptions { tools: Some(tools()), ..AnswerOptions::default() };
        let mut options = GenerateOptions::default();
        let reader = format.answer(prompt, &answer, &bytes.constraints, &mut options).unwrap();
        bytes.held(&options.constraint.unwrap(), text, "").unwrap();
        read(reader, [text.to_string()].into_iter())["calls"].clone()
    };
    let (known, unknown) = (format(KNOWN), format(UNKNOWN));
    for format in [&known, &unknown] {
        assert_eq!(prompt(format, None), "<user>When?");
        assert_eq!(prompt(format, Some(&[])), "<user>When?");
    }
    let with_tools = prompt(&known, Some(&tools()));
    assert!(with_tools.starts_with("[TOOLS]") && with_tools.ends_with("When?"), "{with_tools}");
    assert_eq!(answer(&known, &with_tools, "[TOOL_CALLS]now[ARGS]{}"), json!([["now", {}]]));
    let with_tools = prompt(&unknown, Some(&tools()));
    assert!(with_tools.starts_with("<system>You may call these tools"), "{with_tools}");
    let generic = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    assert_eq!(answer(&unknown, &with_tools, generic), json!([["now", {}]]));
    assert_eq!((known.writes_tools(), unknown.writes_tools()), (true, false));
    // The same where a template is rendered without a model.
    let other = template(PLAIN).with_one_for_tools(Some(template(KNOWN)));
    let rendered = super::render(&other, &asked, Some(&tools()), true, &Map::new()).unwrap();
    assert_eq!(rendered.text, prompt(&known, Some(&tools())));
}

#[test]
fn transcripts_of_real_models_are_read_and_held() {
    let Some(data) = akunu_testing::data("reading transcripts", "chat-templates") else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/transcripts");
    let bytes = Bytes::new();
    let (mut count, mut all_wrong) = (0, Vec::new());
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    paths.sort();
    for path in paths {
        let Family { name, templates, transcripts } = family(&path, &data);
        for (described, template) in &templates {
            let template = ChatTemplate::new(template, Some("<s>"), Some("</s>")).unwrap();
            let format = ChatFormat::new(&bytes.model, template).unwrap();
            for transcript in &transcripts {
                let what = || format!("{name}, {described}, {}", transcript.title);
                match catch_unwind(AssertUnwindSafe(|| wrong(&bytes, &format, transcript))) {
                    Ok(wrong) => all_wrong.extend(wrong.map(|wrong| format!("{}: {wrong}", what()))),
                    Err(_) => all_wrong.push(format!("{}: panics", what())),
                }
                count += 1;
            }
        }
    }
    println!("{count} transcripts");
    assert!(count > 100 && all_wrong.is_empty(), "{} of {count}:\n{}", all_wrong.len(), all_wrong.join("\n"));
}
