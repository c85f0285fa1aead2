//! Chat templates compared with Jinja2 and transformers.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::{Path, PathBuf};

use akunu_testing::fewest_or;
use akunu_tokenizer::chat::{ChatError, ChatTemplate};
use serde_json::{Map, Value as Json};

/// 2024-07-26 12:34:56, as in `chat/render.py`.
const NOW: i64 = 1_721_997_296;

fn json(test: &str, file: &str) -> Option<Json> {
    let text = std::fs::read_to_string(akunu_testing::data(test, file)?).unwrap();
    Some(serde_json::from_str(&text).unwrap())
}

fn list(json: &Json) -> &[Json] {
    json.as_array().map_or(&[], Vec::as_slice)
}

fn render(source: &str, bos: Option<&str>, eos: Option<&str>, case: &Json) -> Result<String, ChatError> {
    let template = ChatTemplate::new(source, bos, eos)?.at(NOW);
    let mut extra: Map<String, Json> = case["extra"].as_object().cloned().unwrap_or_default();
    if let Some(effort) = case.get("reasoning_effort") {
        extra.insert("reasoning_effort".into(), effort.clone());
    }
    let tools = case["tools"].as_array().map(Vec::as_slice);
    let prompt = case["add_generation_prompt"].as_bool().unwrap_or(false);
    Ok(template.render(list(&case["messages"]), tools, prompt, &extra)?.text)
}

/// Fails with a list of the failed cases.
fn verdict(test: &str, passed: usize, skipped: usize, wrong: &[String]) {
    println!("{test}: {passed} passed, {skipped} skipped, {} wrong", wrong.len());
    for case in wrong {
        println!("{case}");
    }
    assert!(wrong.is_empty(), "{} cases are wrong, {passed} right", wrong.len());
}

/// The special tokens that the vectors were rendered with.
fn tokens_of(family: &str) -> (&'static str, &'static str) {
    match family {
        "llama3" => ("<|begin_of_text|>", "<|eot_id|>"),
        "gemma" => ("<bos>", "<eos>"),
        "phi3" => ("<s>", "<|endoftext|>"),
        "deepseek" => ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        _ => ("<s>", "</s>"),
    }
}

#[test]
fn vectors_render_as_jinja2_renders_them() {
    let test = "template vectors";
    let Some(vectors) = json(test, "chat-templates/vectors/chat_template_cases.json") else { return };
    let (mut passed, mut skipped, mut raised, mut wrong) = (0, 0, 0, Vec::new());
    for (name, entry) in vectors.as_object().unwrap() {
        for (index, case) in list(&entry["cases"]).iter().enumerate() {
            if case["reasoning_effort"] == "off" {
                // `enable_thinking: false` under the name of another program.
                skipped += 1;
                continue;
            }
            let (bos, eos) = tokens_of(name);
            let result = render(entry["template"].as_str().unwrap(), Some(bos), Some(eos), case);
            match (&result, case["expected"].as_str(), case["raises"].as_bool()) {
                (Ok(text), Some(expected), _) if text == expected => passed += 1,
                (Err(ChatError::Raised { .. }), _, Some(true)) => {
                    passed += 1;
                    raised += 1;
                }
                _ => wrong.push(format!("{name} {index}: {result:?}\n  not {}", case["expected"])),
            }
        }
    }
    verdict(test, passed, skipped, &wrong);
    assert_eq!((passed, skipped, raised), (90, 6, 7));
}

#[test]
fn templates_that_llama_cpp_collected_render_alike() {
    let test = "llama.cpp templates";
    let Some(all) = json(test, "chat-templates/vectors/llamacpp_chat_templates.json") else { return };
    let mut conversation = Map::new();
    conversation.insert("messages".into(), all["conversation"].clone());
    conversation.insert("add_generation_prompt".into(), all["add_generation_prompt"].clone());
    let conversation = Json::Object(conversation);
    let (mut passed, mut skipped, mut wrong) = (0, 0, Vec::new());
    for case in list(&all["cases"]) {
        if case["jinja2_agrees"] != true {
            skipped += 1;
            continue;
        }
        let token = |name: &str| Some(case[name].as_str().unwrap_or_default());
        let source = case["template_str"].as_str().unwrap();
        let result = render(source, token("bos_token"), token("eos_token"), &conversation);
        let differing = case["expected_output_jinja"].as_str().filter(|text| !text.is_empty());
        let expected = differing.or(case["expected_output"].as_str()).unwrap();
        match result {
            Ok(text) if text == expected => passed += 1,
            result => wrong.push(format!("{}: {result:?}\n  not {expected:?}", case["name"])),
        }
    }
    verdict(test, passed, skipped, &wrong);
    assert_eq!((passed, skipped), (20, 13));
}

#[test]
fn jinja_cases_render_alike() {
    let test = "Jinja cases";
    let Some(cases) = json(test, "chat-templates/vectors/jinja_unit.json") else { return };
    let (mut passed, mut skipped, mut wrong) = (0, 0, Vec::new());
    for case in list(&cases) {
        if case["jinja2_agrees"] != true {
            skipped += 1;
            continue;
        }
        let template = ChatTemplate::new(case["template"].as_str().unwrap(), None, None);
        let context = case["context"].as_object().unwrap();
        let result = template.and_then(|template| template.render(&[], None, false, context));
        match result {
            Ok(rendered) if rendered.text == case["expected"].as_str().unwrap() => passed += 1,
            result => wrong.push(format!("{}: {result:?}\n  not {}", case["name"], case["expected"])),
        }
    }
    verdict(test, passed, skipped, &wrong);
    assert_eq!((passed, skipped), (90, 67));
}

/// Errors of transformers that are not errors here: `map` and similar filters return a list, `from_json` exists, and a
/// template that expects the arguments of tool calls as text gets them so.
fn more_lenient(error: &str) -> bool {
    ["Object of type generator", "No filter named 'from_json'", "can only concatenate str (not \"dict\")"]
        .iter()
        .any(|lenient| error.contains(lenient))
}

/// The templates in a folder, recursively.
fn template_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(template_files(&path));
        } else if path.extension().is_some_and(|ending| ending == "jinja") {
            found.push(path);
        }
    }
    found
}

fn fnv1a(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn real_templates_render_as_transformers_renders_them() {
    let test = "real templates";
    let Some(folder) = akunu_testing::data(test, "chat-templates") else { return };
    let read = |text: &str| -> Json { serde_json::from_str(text).unwrap() };
    let cases = read(include_str!("../chat/conversations.json"));
    // AKUNU_CHAT_GOLDENS: output of `render.py --full`, to compare texts instead of hashes.
    let goldens = match std::env::var_os("AKUNU_CHAT_GOLDENS") {
        Some(path) => read(&std::fs::read_to_string(path).unwrap()),
        None => read(include_str!("../chat/goldens.json")),
    };
    let (mut passed, mut errors, mut lenient, mut wrong) = (0, 0, 0, Vec::new());
    let templates = goldens["templates"].as_object().unwrap();
    for path in template_files(&folder) {
        let file = path.strip_prefix(&folder).unwrap().to_string_lossy().replace('\\', "/");
        assert!(templates.contains_key(&file), "{file} has no goldens: run chat/render.py");
    }
    for (file, golden) in templates {
        let source = std::fs::read_to_string(folder.join(file)).unwrap();
        for (name, case) in cases.as_object().unwrap() {
            let expected = golden[name].as_str().unwrap();
            let expected = expected.strip_prefix("mutable ").unwrap_or(expected);
            let result = render(&source, Some("<s>"), Some("</s>"), case);
            let same = match (&result, expected.strip_prefix("error: ")) {
                (Ok(text), None) => {
                    expected.strip_prefix("text: ") == Some(text)
                        || expected == format!("{}:{:016x}", text.len(), fnv1a(text))
                }
                (Ok(_), Some(error)) => {
                    lenient += usize::from(more_lenient(error));
                    more_lenient(error)
                }
                (Err(ChatError::Raised { message }), Some(error)) => {
                    errors += 1;
                    error.strip_prefix("TemplateError: ") == Some(message)
                }
                (Err(_), Some(error)) => {
                    errors += 1;
                    !error.starts_with("TemplateError")
                }
                (Err(_), None) => false,
            };
            if same {
                passed += 1;
            } else {
                wrong.push(format!("{file}, {name}:\n  is  {result:?}\n  not {expected:?}"));
            }
        }
    }
    println!("{} templates, {errors} refusals, {lenient} more lenient", templates.len());
    verdict(test, passed, 0, &wrong);
}

/// Templates that try to exhaust time, memory or the stack.
#[test]
fn hostile_templates_are_stopped() {
    let ns = "{% set ns = namespace(x='ab', l=[1]) %}";
    let range = "{% for i in range(100000) %}";
    let loops = format!("{range}{range}{range}x{{% endfor %}}{{% endfor %}}{{% endfor %}}");
    let nested = "{{ ".to_string() + &"(".repeat(100_000) + "1" + &")".repeat(100_000) + " }}";
    let minus = "{{ ".to_string() + &"-".repeat(100_000) + "1 }}";
    let not = "{{ ".to_string() + &"not ".repeat(100_000) + "1 }}";
    let blocks = "{% if 1 %}".repeat(40_000) + &"{% endif %}".repeat(40_000);
    let wide = "{{ 1".to_string() + &" + 1".repeat(150_000) + " }}";
    let ternary = "{{ 1".to_string() + &" if 0 else 1".repeat(50_000) + " }}";
    let doubled = |op: &str| format!("{ns}{range}{{% set ns.x = {op} %}}{{% endfor %}}");
    let cases = [
        ("loops", loops.clone()),
        ("loops in a macro", format!("{{% macro m() %}}{loops}{{% endmacro %}}{{{{ m() }}}}")),
        ("recursion", "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into()),
        ("recursion through caller", "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}".into()),
        ("recursive loop", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".into()),
        ("output", format!("{range}{{{{ 'x' * 100000 }}}}{{% endfor %}}")),
        ("repetition", "{{ 'x' * 99999999999 }}".into()),
        ("repetition of lists", "{{ [1] * 99999999999 }}".into()),
        ("addition", doubled("ns.x + ns.x")),
        ("concatenation", doubled("ns.x ~ ns.x")),
        ("replacement", doubled("ns.x.replace('a', ns.x)")),
        ("replacement by filter", doubled("ns.x|replace('b', ns.x)")),
        ("join", doubled("ns.x.join([ns.x, ns.x])")),
        ("format", doubled("'%s%s' % (ns.x, ns.x)")),
        ("format method", doubled("'{0}{0}'.format(ns.x)")),
        ("width", "{{ '%9999999999s' % 1 }}".into()),
        ("zfill", format!("{range}{{% set x = 'a'.zfill(1048576) %}}{{% endfor %}}")),
        ("indent", doubled("ns.x|replace('a', '\\n')|indent(200)|replace('\\n', ns.x)")),
        ("escape", doubled("(ns.x ~ '<')|e|forceescape ~ ns.x")),
        ("json of json", doubled("[ns.x, ns.x]|tojson")),
        ("lists", doubled("ns.l + ns.l") .replace("ns.x =", "ns.l =")),
        ("block", format!("{ns}{range}{{% set t %}}{{{{ ns.x }}}}{{{{ ns.x }}}}{{% endset %}}{{% set ns.x = t %}}{{% endfor %}}")),
        ("raw text", format!("{{% set t %}}{range}{}{{% endfor %}}{{% endset %}}", "long ".repeat(20_000))),
        ("nesting that is shown", format!("{ns}{range}{{% set ns.l = [ns.l] %}}{{% endfor %}}{{{{ ns.l }}}}")),
        ("nesting as JSON", format!("{ns}{range}{{% set ns.l = {{'a': ns.l}} %}}{{% endfor %}}{{{{ ns.l|tojson }}}}")),
        ("nesting that is compared", format!("{ns}{{% set ms = namespace(l=[1]) %}}{range}{{% set ns.l = [ns.l] %}}{{% set ms.l = [ms.l] %}}{{% endfor %}}{{{{ ns.l == ms.l }}}}")),
        ("nested keys", format!("{ns}{range}{{% set ns.l = (ns.l, 1) %}}{{% endfor %}}{{{{ {{ns.l: 1}} }}}}")),
        ("a list in itself", "{% set l = [] %}{% set x = l.append(l) %}{{ l }}".into()),
        ("a namespace in itself", "{% set n = namespace() %}{% set n.n = n %}{{ n }}".into()),
        ("parentheses", nested),
        ("signs", minus),
        ("negations", not),
        ("blocks", blocks),
        ("conditionals", ternary),
        ("a large range", "{{ range(10 ** 30) }}".into()),
        ("a large power", "{{ 10 ** 10 ** 10 }}".into()),
        ("the smallest number", "{{ (-170141183460469231731687303715884105727 - 1) // -1 }}".into()),
        ("no remainder", "{{ 1 % 0 }}".into()),
    ];
    for (name, source) in cases.into_iter().step_by(fewest_or(2, 1, 1)) {
        let start = std::time::Instant::now();
        let result = render(&source, None, None, &Json::Null);
        println!("{name}: {:?} in {:?}", result.as_ref().map(String::len), start.elapsed());
        assert!(result.is_err(), "{name}");
        assert!(start.elapsed().as_secs() < 20, "{name}");
    }
    // These are long but not deep, and allowed.
    assert_eq!(render(&wide, None, None, &Json::Null).unwrap(), "150001");
    let nest = format!("{ns}{range}{{% set ns.l = [ns.l] %}}{{% endfor %}}ok");
    assert_eq!(render(&nest, None, None, &Json::Null).unwrap(), "ok");
    let slices = format!("{ns}{range}{{% set ns.l = ns.l[0:] %}}{{% endfor %}}{{{{ ns.l|length }}}}");
    assert_eq!(render(&slices, None, None, &Json::Null).unwrap(), "1");
    let unordered =
        "{{ ['nan'|float, 1, 'nan'|float, 0.5, 9007199254740993, 9007199254740992.0]|sort|length }}";
    assert_eq!(render(unordered, None, None, &Json::Null).unwrap(), "6");
}
