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
    shown: fn(&Sampling, &SamplingArgs) -> String,
    is_given: fn(&SamplingArgs) -> bool,
    /// Back to the model's suggestion or the default.
    unset: fn(&mut SamplingArgs),
}

macro_rules! setting {
    ($name:literal, $($field:ident).+, $shown:expr) => {
        Setting {
            name: $name,
            shown: |sampling, _| {
                let shown: fn(&Sampling) -> String = $shown;
                shown(sampling)
            },
            is_given: |args| args.$($field).+.is_some(),
            unset: |args| args.$($field).+ = None,
        }
    };
}

static SAMPLING: [Setting; 24] = [
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
        shown: |s, _| {
            let biases: Vec<String> = s.logit_bias.iter().map(|(id, bias)| format!("{id}={bias}")).collect();
            if biases.is_empty() { "none".to_string() } else { biases.join(" ") }
        },
        is_given: |args| !args.logit_bias.is_empty(),
        unset: |args| args.logit_bias.clear(),
    },
    setting!("top-n-sigma", more.top_n_sigma, |s| s.top_n_sigma.to_string()),
    setting!("typical-p", more.typical_p, |s| s.typical_p.to_string()),
    setting!("xtc-probability", more.xtc_probability, |s| s.xtc_probability.to_string()),
    setting!("xtc-threshold", more.xtc_threshold, |s| s.xtc_threshold.to_string()),
    setting!("dynatemp-range", more.dynatemp_range, |s| s.dynatemp_range.to_string()),
    setting!("dynatemp-exp", more.dynatemp_exp, |s| s.dynatemp_exponent.to_string()),
    setting!("dry-multiplier", more.dry_multiplier, |s| s.dry_multiplier.to_string()),
    setting!("dry-base", more.dry_base, |s| s.dry_base.to_string()),
    setting!("dry-allowed-length", more.dry_allowed_length, |s| s.dry_allowed_length.to_string()),
    setting!("dry-penalty-last-n", more.dry_penalty_last_n, |s| match s.dry_last_n {
        usize::MAX => "-1".to_string(),
        count => count.to_string(),
    }),
    Setting {
        name: "dry-sequence-breaker",
        shown: |_, args| format!("{:?}", args.more.breakers()),
        is_given: |args| !args.more.dry_sequence_breaker.is_empty(),
        unset: |args| args.more.dry_sequence_breaker.clear(),
    },
    setting!("mirostat", more.mirostat, |s| if s.mirostat_tau > 0.0 { "2" } else { "0" }.to_string()),
    Setting {
        name: "mirostat-ent",
        shown: |_, args| args.more.mirostat_ent.unwrap_or(Sampling::MIROSTAT_TAU).to_string(),
        is_given: |args| args.more.mirostat_ent.is_some(),
        unset: |args| args.more.mirostat_ent = None,
    },
    setting!("mirostat-lr", more.mirostat_lr, |s| s.mirostat_eta.to_string()),
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
            rows.push((setting.name, (setting.shown)(sampling, &self.sampling), given));
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
        let line = |(name, value, note): &(&str, String, &str)| format!("{name:<20} {value:<8} {note}");
        Ok(rows.iter().map(|row| line(row).trim_end().to_string()).collect::<Vec<_>>().join("\n"))
    }
}

/// Also names that people know from elsewhere.
fn canonical(name: &str) -> String {
    match name.to_ascii_lowercase().replace('_', "-").trim_start_matches('-') {
        "temperature" => "temp".to_string(),
        "num-predict" | "n" => MAX_TOKENS.to_string(),
        "top-nsigma" => "top-n-sigma".to_string(),
        "typical" => "typical-p".to_string(),
        "dynatemp-exponent" => "dynatemp-exp".to_string(),
        "dry-sequence-breakers" => "dry-sequence-breaker".to_string(),
        "mirostat-tau" => "mirostat-ent".to_string(),
        "mirostat-eta" => "mirostat-lr".to_string(),
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
            ("temperature", "0.5", "temp                 0.5"),
            ("TOP_K", "7", "top-k                7"),
            ("seed", "5", "seed                 5"),
            ("logit-bias", "5=-inf", "logit-bias           5=-inf"),
            ("max_tokens", "9", "max-tokens           9"),
            ("typical", "0.5", "typical-p            0.5"),
            ("dry-penalty-last-n", "100", "dry-penalty-last-n   100"),
            ("dry_sequence_breaker", "\\n", "dry-sequence-breaker [\"\\n\"]"),
            ("dry-sequence-breakers", "none", "dry-sequence-breaker []"),
            ("mirostat", "2", "mirostat             2"),
            ("mirostat_tau", "3", "mirostat-ent         3"),
            ("wrap", "off", "wrap                 off"),
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
            ("typical-p", "1.5"),
            ("xtc-threshold", "nan"),
            ("dry-base", "0.5"),
            ("dry-penalty-last-n", "-2"),
            ("dry-sequence-breaker", ""),
            ("mirostat", "1"),
            ("mirostat-ent", "0"),
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
