//! Settings of reasoning, in the variables that a template reads.

use akunu_tokenizer::chat::ChatTemplate;
use serde_json::{Map, Value as Json};

/// Tokens of reasoning for each effort, for templates that have a budget: multiples of 512, as Seed-OSS was trained with.
/// -1: no limit.
const BUDGETS: [(&str, i64); 7] = [
    ("none", 0),
    ("minimal", 512),
    ("low", 1024),
    ("medium", 4096),
    ("high", 16384),
    ("xhigh", -1),
    ("max", -1),
];

/// The variables for whether and how much a model reasons.
const THINKING: [&str; 2] = ["enable_thinking", "thinking"];
const BUDGET: &str = "thinking_budget";
const EFFORT: &str = "reasoning_effort";

/// Whether a template reads a variable that an effort sets.
pub fn reads_effort(template: &ChatTemplate) -> bool {
    THINKING.into_iter().chain([BUDGET, EFFORT]).any(|name| template.mentions(name))
}

/// The variables with those that this template reads in place of `enable_thinking` and `reasoning_effort`. `None`: they stay
/// as they are. What is given is not changed.
pub(super) fn with_reasoning(
    template: &ChatTemplate,
    variables: &Map<String, Json>,
) -> Option<Map<String, Json>> {
    let effort = variables.get(EFFORT).and_then(Json::as_str);
    let mut more: Vec<(&str, Json)> = Vec::new();
    // Who asks for an effort asks for reasoning, except for as little as there can be.
    let by_effort = || match effort? {
        "none" => Some(false),
        "minimal" => None,
        _ if template.mentions(EFFORT) => None,
        _ => Some(true),
    };
    let thinks = THINKING.into_iter().find_map(|name| variables.get(name)?.as_bool()).or_else(by_effort);
    more.extend(thinks.into_iter().flat_map(|thinks| THINKING.map(|name| (name, thinks.into()))));
    let by_effort = || BUDGETS.into_iter().find(|(name, _)| Some(*name) == effort).map(|(_, budget)| budget);
    let budget = if thinks == Some(false) { Some(0) } else { by_effort() };
    more.extend(budget.map(|budget| (BUDGET, budget.into())));
    more.retain(|(name, _)| template.mentions(name) && !variables.contains_key(*name));
    if more.is_empty() {
        return None;
    }
    let mut variables = variables.clone();
    variables.extend(more.into_iter().map(|(name, value)| (name.to_string(), value)));
    Some(variables)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_in_the_variables_of_the_template() {
        const GRANITE: &str = "{% if thinking %}a{% endif %}";
        const SEED: &str = "{% if thinking_budget is defined %}{{ thinking_budget }}{% endif %}";
        const QWEN: &str = "{% if enable_thinking %}a{% endif %}";
        const BOTH: &str = "{{ enable_thinking }}{{ reasoning_effort }}";
        for (source, given, expected) in [
            (GRANITE, json!({ "reasoning_effort": "low" }), json!({ "thinking": true })),
            (GRANITE, json!({ "reasoning_effort": "none" }), json!({ "thinking": false })),
            (GRANITE, json!({ "reasoning_effort": "minimal" }), json!({})),
            (GRANITE, json!({ "enable_thinking": true }), json!({ "thinking": true })),
            (GRANITE, json!({ "enable_thinking": true, "thinking": false }), json!({})),
            (SEED, json!({ "reasoning_effort": "low" }), json!({ "thinking_budget": 1024 })),
            (SEED, json!({ "reasoning_effort": "max" }), json!({ "thinking_budget": -1 })),
            (SEED, json!({ "enable_thinking": false }), json!({ "thinking_budget": 0 })),
            (SEED, json!({ "enable_thinking": true }), json!({})),
            (SEED, json!({ "enable_thinking": true, "thinking_budget": 2048 }), json!({})),
            (QWEN, json!({ "reasoning_effort": "high" }), json!({ "enable_thinking": true })),
            (QWEN, json!({ "enable_thinking": false, "reasoning_effort": "high" }), json!({})),
            (BOTH, json!({ "reasoning_effort": "high" }), json!({})),
            (BOTH, json!({ "reasoning_effort": "none" }), json!({ "enable_thinking": false })),
            ("plain", json!({ "reasoning_effort": "high", "enable_thinking": true }), json!({})),
        ] {
            let template = ChatTemplate::new(source, None, None).unwrap();
            let mut all = given.as_object().unwrap().clone();
            let found = with_reasoning(&template, &all).unwrap_or_else(|| all.clone());
            all.extend(expected.as_object().unwrap().clone());
            assert_eq!(found, all, "{source} with {given}");
        }
    }

    #[test]
    fn real_templates_have_the_setting() {
        for (file, given, part) in [
            (
                "ibm-granite-granite-3.3-2B-Instruct.jinja",
                json!({ "reasoning_effort": "high" }),
                "between <think>",
            ),
            ("ByteDance-Seed-OSS.jinja", json!({ "reasoning_effort": "none" }), "thinking budget is 0"),
            ("ByteDance-Seed-OSS.jinja", json!({ "reasoning_effort": "low" }), "budget, which is 1024"),
            ("Qwen-Qwen3-0.6B.jinja", json!({ "reasoning_effort": "none" }), "<think>\n\n</think>"),
        ] {
            let Some(path) = akunu_testing::data("settings of reasoning", &format!("chat-templates/{file}"))
            else {
                return;
            };
            let source = std::fs::read_to_string(path).unwrap();
            let template = ChatTemplate::new(&source, None, None).unwrap();
            let messages = [json!({ "role": "user", "content": "Hello" })];
            let given = given.as_object().unwrap();
            let text = super::super::render(&template, &messages, None, true, given).unwrap().text;
            assert!(text.contains(part), "{file}: {text}");
            let plain = super::super::render(&template, &messages, None, true, &Map::new()).unwrap().text;
            assert!(!plain.contains(part), "{file}: {plain}");
        }
    }
}
