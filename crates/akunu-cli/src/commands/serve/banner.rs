//! What `akunu serve` says once it serves: where, to whom, and with what.

use std::net::SocketAddr;

use akunu::DeviceChoice;
use akunu_server::{ModelSpec, Options};

use super::super::threads;

/// Models whose names are shown; of more, their number.
const NAMES: usize = 4;

#[derive(Debug)]
pub(super) struct Banner {
    models: String,
    scheme: &'static str,
    keys: String,
    context: Option<String>,
    device: String,
}

impl Banner {
    pub(super) fn new(options: &Options) -> Banner {
        let models = &options.models;
        let engine = &models.engine;
        Banner {
            models: names(&models.models),
            scheme: if options.tls.is_some() { "https" } else { "http" },
            keys: match options.keys.len() {
                0 => "none is needed".into(),
                1 => "1 is accepted".into(),
                count => format!("{count} are accepted"),
            },
            context: context(&models.models, engine.context),
            device: match engine.device.resolve(&engine.backends) {
                DeviceChoice::Cpu => {
                    let threads = threads(engine.threads);
                    format!("cpu, {threads} thread{}", if threads == 1 { "" } else { "s" })
                }
                device => device.name().into(),
            },
        }
    }

    /// The first line ends with the address: scripts read it from there.
    pub(super) fn lines(&self, address: SocketAddr) -> String {
        let url = format!("{}://{address}", self.scheme);
        let rows = [
            ("page", Some(format!("{url}/"))),
            ("OpenAI", Some(format!("{url}/v1"))),
            ("Ollama", Some(url.clone())),
            ("Anthropic", Some(url.clone())),
            ("API keys", Some(self.keys.clone())),
            ("context", self.context.clone()),
            ("device", Some(self.device.clone())),
        ];
        let rows = rows.into_iter().filter_map(|(name, value)| Some(format!("\n  {name:<10} {}", value?)));
        format!("{} at {url}{}", self.models, rows.collect::<String>())
    }
}

fn names(models: &[ModelSpec]) -> String {
    let names: Vec<&str> = models.iter().map(|spec| spec.name.as_str()).collect();
    match names.len() {
        0 => "no models yet".into(),
        count if count > NAMES => format!("{} and {} more models", names[..NAMES].join(", "), count - NAMES),
        _ => names.join(", "),
    }
}

/// The longest contexts of the models that take texts; `given`: that of the command line.
fn context(models: &[ModelSpec], given: Option<usize>) -> Option<String> {
    let of_files = |spec: &ModelSpec| Some(spec.open(false).ok()?.config().context_length);
    let lengths: Vec<usize> = match given {
        Some(given) => vec![given],
        None => models.iter().filter_map(of_files).filter(|&tokens| tokens > 0).collect(),
    };
    let (least, most) = (*lengths.iter().min()?, *lengths.iter().max()?);
    Some(match (least == most, given) {
        (_, Some(given)) => format!("{given} tokens"),
        (true, None) => format!("{most} tokens, if memory suffices"),
        (false, None) => format!("{least} to {most} tokens by model, if memory suffices"),
    })
}

#[cfg(test)]
mod tests {
    use akunu_server::Keys;

    use super::*;

    fn options() -> Options {
        let mut options = Options::default();
        options.models.engine.device = DeviceChoice::Cpu;
        options.models.engine.threads = Some(2);
        options
    }

    #[test]
    fn the_lines_say_where_to_whom_and_with_what() {
        let address = "127.0.0.1:8080".parse().unwrap();
        let lines = Banner::new(&options()).lines(address);
        assert_eq!(
            lines,
            "akunu-tales at http://127.0.0.1:8080
  page       http://127.0.0.1:8080/
  OpenAI     http://127.0.0.1:8080/v1
  Ollama     http://127.0.0.1:8080
  Anthropic  http://127.0.0.1:8080
  API keys   none is needed
  context    2048 tokens, if memory suffices
  device     cpu, 2 threads"
        );
        let mut more = options();
        more.keys = Keys::new("a b");
        more.models.engine.context = Some(100);
        let spec = |name: usize| ModelSpec { name: format!("model-{name}"), ..ModelSpec::embedded() };
        more.models.models = (0..6).map(spec).collect();
        let lines = Banner::new(&more).lines("[::1]:80".parse().unwrap());
        for line in [
            "model-0, model-1, model-2, model-3 and 2 more models at http://[::1]:80\n",
            "\n  API keys   2 are accepted\n  context    100 tokens\n",
        ] {
            assert!(lines.contains(line), "{lines}");
        }
        assert!(lines.lines().all(|line| line.len() <= 80), "{lines}");
    }
}
