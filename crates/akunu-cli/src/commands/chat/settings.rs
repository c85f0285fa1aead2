//! Settings that `/set` shows and changes.

use akunu::{Model, Sampling};
use clap::{Args, Command, FromArgMatches};

use super::super::run::SamplingArgs;
use super::screen::Look;
use crate::args;
use crate::failure::Failure;

/// A sampling setting: the same name, values and errors as the option.
struct Setting {
    name: &'static str,
    shown: fn(&Sampling) -> String,
    is_given: fn(&SamplingArgs) -> bool,
    /// Back to the model's suggestion or the default.
    unset: fn(&mut SamplingArgs),
}

macro_rules! setting {
    ($name:literal, $field:ident, $shown:expr) => {
        Setting {
            name: $name,
            shown: $shown,
            is_given: |args| args.$field.is_some(),
            unset: |args| args.$field = None,
        }
    };
}

static SAMPLING: [Setting; 10] = [
    setting!("temp", temp, |s| s.temperature.to_string()),
    setting!("top-k", top_k, |s| s.top_k.to_string()),
    setting!("top-p", top_p, |s| s.top_p.to_string()),
    setting!("min-p", min_p, |s| s.min_p.to_string()),
    setting!("repeat-penalty", repeat_penalty, |s| s.repeat_penalty.to_string()),
    setting!("frequency-penalty", frequency_penalty, |s| s.frequency_penalty.to_string()),
    setting!("presence-penalty", presence_penalty, |s| s.presence_penalty.to_string()),
    setting!("repeat-last-n", repeat_last_n, |s| s.repeat_last_n.to_string()),
    setting!("seed", seed, |s| s.seed.to_string()),
    Setting {
        name: "logit-bias",
        shown: |s| {
            let biases: Vec<String> = s.logit_bias.iter().map(|(id, bias)| format!("{id}={bias}")).collect();
            if biases.is_empty() { "none".to_string() } else { biases.join(" ") }
        },
        is_given: |args| !args.logit_bias.is_empty(),
        unset: |args| args.logit_bias.clear(),
    },
];

type Field = fn(&mut Look) -> &mut bool;

/// Settings of how answers are shown, which are on or off.
static LOOKS: [(&str, Field); 3] = [
    ("reasoning", |look| &mut look.reasoning),
    ("markdown", |look| &mut look.markdown),
    ("wrap", |look| &mut look.wrap),
];

const MAX_TOKENS: &str = "max-tokens";
const DEFAULT: &str = "default";

/// Names of all settings.
pub fn names() -> impl Iterator<Item = &'static str> {
    let sampling = SAMPLING.iter().map(|setting| setting.name);
    sampling.chain([MAX_TOKENS]).chain(LOOKS.iter().map(|(name, _)| *name))
}

/// Values that complete a setting.
pub fn values(name: &str) -> &'static [&'static str] {
    if LOOKS.iter().any(|(look, _)| *look == name) { &["on", "off"] } else { &[DEFAULT] }
}

#[derive(Debug)]
pub struct Settings {
    pub sampling: SamplingArgs,
    pub max_tokens: Option<usize>,
    pub look: Look,
}

impl Settings {
    /// Sets a value, which is checked as the option's. `sampling` takes effect with the next answer.
    pub fn set(&mut self, name: &str, value: &str, model: &Model) -> Result<(), Failure> {
        let name = canonical(name);
        if let Some((_, place)) = LOOKS.iter().find(|(look, _)| *look == name) {
            *place(&mut self.look) = match value {
                "on" | DEFAULT => true,
                "off" => false,
                _ => return Err(refused(&name, value, "it must be on or off")),
            };
            return Ok(());
        }
        if name == MAX_TOKENS {
            self.max_tokens = match value {
                DEFAULT => None,
                _ => Some(args::count(value).map_err(|problem| refused(&name, value, &problem))?),
            };
            return Ok(());
        }
        let setting = SAMPLING.iter().find(|setting| setting.name == name).ok_or_else(|| unknown(&name))?;
        let mut new = self.sampling.clone();
        match value {
            DEFAULT => (setting.unset)(&mut new),
            _ => {
                let parser = SamplingArgs::augment_args(Command::new("/set").no_binary_name(true));
                let option = format!("--{name}={value}");
                let update = |matches| new.update_from_arg_matches(&matches);
                parser.try_get_matches_from([option]).and_then(update).map_err(Failure::from)?;
            }
        }
        new.check()?;
        new.sampling(model).check(model.config().vocab_size)?;
        self.sampling = new;
        Ok(())
    }

    /// The settings, or the one of this name, in lines.
    pub fn shown(&self, name: Option<&str>, sampling: &Sampling) -> Result<String, Failure> {
        let mut rows = Vec::new();
        for setting in &SAMPLING {
            let given = if (setting.is_given)(&self.sampling) { "" } else { "(default)" };
            rows.push((setting.name, (setting.shown)(sampling), given));
        }
        let limit = self.max_tokens.map_or_else(|| "none".to_string(), |limit| limit.to_string());
        rows.push((MAX_TOKENS, limit, if self.max_tokens.is_some() { "" } else { "(default)" }));
        let mut look = self.look;
        for (name, place) in &LOOKS {
            rows.push((*name, if *place(&mut look) { "on" } else { "off" }.to_string(), ""));
        }
        if let Some(name) = name {
            let name = canonical(name);
            rows.retain(|(row, ..)| *row == name);
            if rows.is_empty() {
                return Err(unknown(&name));
            }
        }
        let line = |(name, value, note): &(&str, String, &str)| format!("{name:<18} {value:<8} {note}");
        Ok(rows.iter().map(|row| line(row).trim_end().to_string()).collect::<Vec<_>>().join("\n"))
    }
}

/// Also names that people know from elsewhere.
fn canonical(name: &str) -> String {
    match name.to_ascii_lowercase().replace('_', "-").trim_start_matches('-') {
        "temperature" => "temp".to_string(),
        "num-predict" | "n" => MAX_TOKENS.to_string(),
        other => other.to_string(),
    }
}

fn unknown(name: &str) -> Failure {
    let names: Vec<&str> = names().collect();
    Failure::new(format!("there is no setting {name}")).hint(format!("settings are {}", names.join(", ")))
}

fn refused(name: &str, value: &str, problem: &str) -> Failure {
    Failure::new(format!("invalid value '{value}' for '{name}': {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { sampling: SamplingArgs::default(), max_tokens: None, look: Look::new(true, false) }
    }

    #[test]
    fn each_sampling_option_is_a_setting() {
        let command = SamplingArgs::augment_args(Command::new("x"));
        let options: Vec<&str> = command.get_arguments().filter_map(|option| option.get_long()).collect();
        for option in &options {
            assert!(SAMPLING.iter().any(|setting| setting.name == *option), "{option}");
        }
        assert_eq!(options.len(), SAMPLING.len());
    }

    #[test]
    fn values_are_set_shown_and_unset() {
        let model = Model::embedded().unwrap();
        let mut settings = settings();
        for (name, value, shown) in [
            ("temperature", "0.5", "temp               0.5"),
            ("TOP_K", "7", "top-k              7"),
            ("seed", "5", "seed               5"),
            ("logit-bias", "5=-inf", "logit-bias         5=-inf"),
            ("max_tokens", "9", "max-tokens         9"),
            ("wrap", "off", "wrap               off"),
        ] {
            settings.set(name, value, &model).unwrap();
            let sampling = settings.sampling.sampling(&model);
            assert_eq!(settings.shown(Some(name), &sampling).unwrap(), shown);
            settings.set(name, "default", &model).unwrap();
            let sampling = settings.sampling.sampling(&model);
            assert_ne!(settings.shown(Some(name), &sampling).unwrap(), shown, "{name}");
        }
        let sampling = settings.sampling.sampling(&model);
        let all = settings.shown(None, &sampling).unwrap();
        assert!(names().all(|name| all.contains(name)) && all.lines().count() == names().count(), "{all}");
    }

    #[test]
    fn wrong_values_change_nothing() {
        let model = Model::embedded().unwrap();
        let mut settings = settings();
        for (name, value) in [
            ("temp", "hot"),
            ("temp", "-1"),
            ("temp", ""),
            ("top-k", "-1"),
            ("top-p", "2"),
            ("seed", "x"),
            ("logit-bias", "9999999=1"),
            ("max-tokens", "0"),
            ("wrap", "maybe"),
            ("temps", "1"),
            ("help", "1"),
        ] {
            assert!(settings.set(name, value, &model).is_err(), "{name} {value}");
        }
        assert_eq!(format!("{:?}", settings.sampling), format!("{:?}", SamplingArgs::default()));
        assert!(settings.shown(Some("temps"), &Sampling::default()).is_err());
    }
}
