//! Counters and histograms in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use akunu::schedule::Stats;

use crate::kv_events::KvEvents;
use crate::memory::RequestMemory;
use crate::models::{Lease, Models, SpeechCounts, TextCounts};

/// Bounds of the buckets, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

#[derive(Debug, Default)]
pub struct Metrics {
    /// By route and status.
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    /// By class, as in [`CLASSES`].
    first_token: [Histogram; 3],
    between_tokens: [Histogram; 3],
}

/// Classes of requests: with priorities below 0, 0, and above.
const CLASSES: [&str; 3] = ["first", "normal", "last"];

fn class_of(priority: i32) -> usize {
    (priority.signum() + 1) as usize
}

impl Metrics {
    pub(crate) fn answered(&self, route: &str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route.to_string(), status)).or_default() += 1;
    }

    /// Records the time from the start of a request to its first token.
    pub(crate) fn first_token(&self, priority: i32, after: Duration) {
        self.first_token[class_of(priority)].observe(after, 1);
    }

    /// Records tokens that were generated together; the time is divided between them.
    pub(crate) fn next_tokens(&self, priority: i32, after: Duration, tokens: usize) {
        if tokens > 0 {
            self.between_tokens[class_of(priority)].observe(after.div_f64(tokens as f64), tokens as u64);
        }
    }

    pub(crate) fn write(&self, models: &Models, memory: &RequestMemory) -> String {
        let mut page = MetricsPage::default();
        page.about("akunu_requests_total", "counter", "Requests answered, by route and status.");
        for ((route, status), count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            page.line("akunu_requests_total", &[("route", route), ("status", &status.to_string())], count);
        }
        page.histogram(
            "akunu_time_to_first_token_seconds",
            "Time from the start of a request to its first token, by class of its priority.",
            &self.first_token,
        );
        page.histogram(
            "akunu_inter_token_seconds",
            "Time between tokens of an answer, by class; tokens generated together share their time.",
            &self.between_tokens,
        );
        page.about(
            "akunu_request_memory_bytes",
            "gauge",
            "Memory of the requests that are being read and tokenized.",
        );
        page.line("akunu_request_memory_bytes", &[], memory.used());
        page.about("akunu_request_memory_limit_bytes", "gauge", "Its limit for all requests together.");
        page.line("akunu_request_memory_limit_bytes", &[], memory.limit());
        page.about("akunu_model_loaded", "gauge", "Whether a model is in memory.");
        let all = models.list();
        for (spec, lease) in &all {
            page.line("akunu_model_loaded", &[("model", &spec.name)], u8::from(lease.is_some()));
        }
        page.about("akunu_model_bytes", "gauge", "Memory of a loaded model, including weights.");
        for (spec, lease) in &all {
            let bytes = lease.as_ref().map_or(0, |lease| lease.bytes());
            page.line("akunu_model_bytes", &[("model", &spec.name)], bytes);
        }
        let loaded: Vec<(&str, Stats)> = all
            .iter()
            .filter_map(|(spec, lease)| Some((spec.name.as_str(), lease.as_ref()?.handle()?.stats())))
            .collect();
        for (name, kind, help, value) in ENGINE_METRICS {
            page.about(name, kind, help);
            for (model, stats) in &loaded {
                page.line(name, &[("model", model)], value(stats));
            }
        }
        for (name, kind, help, value) in VLLM_METRICS {
            page.about(name, kind, help);
            for (model, stats) in &loaded {
                page.line(name, &[("model_name", model)], value(stats));
            }
        }
        if let Some(counts) = models.kv_events().map(KvEvents::counts) {
            for (name, kind, help, value) in [
                (
                    "akunu_kv_event_batches_total",
                    "counter",
                    "Batches of events of the KV cache.",
                    counts.batches,
                ),
                ("akunu_kv_event_subscribers", "gauge", "Connected subscribers.", counts.subscribers as u64),
                (
                    "akunu_kv_event_missed_total",
                    "counter",
                    "Batches that subscribers were too slow for.",
                    counts.missed,
                ),
            ] {
                page.about(name, kind, help);
                page.line(name, &[], value);
            }
        }
        page.about(CACHE_CONFIG, "gauge", "The blocks of the KV cache.");
        for (model, stats) in &loaded {
            let block = stats.kv_block.max(1);
            let (size, count) = (block.to_string(), (stats.kv_capacity / block).to_string());
            let labels = [("model_name", *model), ("block_size", &size), ("num_gpu_blocks", &count)];
            page.line(CACHE_CONFIG, &labels, 1);
        }
        let embedders: Vec<(&str, &Lease)> = all
            .iter()
            .filter_map(|(spec, lease)| Some((spec.name.as_str(), lease.as_ref()?)))
            .filter(|(_, lease)| lease.texts().is_some())
            .collect();
        for (name, kind, help, value) in EMBEDDER_METRICS {
            page.about(name, kind, help);
            for (model, lease) in &embedders {
                if let Some(queue) = lease.texts() {
                    page.line(name, &[("model", model)], value(queue.counts()));
                }
            }
        }
        let transcribers: Vec<(&str, &Lease)> = all
            .iter()
            .filter_map(|(spec, lease)| Some((spec.name.as_str(), lease.as_ref()?)))
            .filter(|(_, lease)| lease.speech().is_some())
            .collect();
        for (name, kind, help, value) in TRANSCRIBER_METRICS {
            page.about(name, kind, help);
            for (model, lease) in &transcribers {
                if let Some(queue) = lease.speech() {
                    page.line(name, &[("model", model)], value(queue.counts()));
                }
            }
        }
        page.text
    }
}

/// Name, type, help, and value.
type TranscriberMetric = (&'static str, &'static str, &'static str, fn(&SpeechCounts) -> f64);

/// Metrics of each loaded model that transcribes.
const TRANSCRIBER_METRICS: &[TranscriberMetric] = &[
    ("akunu_transcription_requests", "gauge", "Transcription requests that are queued or running.", |c| {
        c.waiting() as f64
    }),
    ("akunu_transcribed_seconds_total", "counter", "Seconds of audio transcribed.", SpeechCounts::seconds),
    ("akunu_transcription_steps_total", "counter", "Passes over windows of several requests.", |c| {
        c.steps() as f64
    }),
    ("akunu_transcription_turns_total", "counter", "The sum of the requests in each such pass.", |c| {
        c.turns() as f64
    }),
];

/// Name, type, help, and value.
type EmbedderMetric = (&'static str, &'static str, &'static str, fn(&TextCounts) -> u64);

/// Metrics of each loaded embedding or reranking model.
const EMBEDDER_METRICS: &[EmbedderMetric] = &[
    ("akunu_text_requests", "gauge", "Embedding and reranking requests that are queued or running.", |c| {
        c.waiting() as u64
    }),
    ("akunu_embedded_texts_total", "counter", "Texts embedded, and pairs scored.", TextCounts::texts),
    ("akunu_embedded_tokens_total", "counter", "Tokens of those texts.", TextCounts::tokens),
    (
        "akunu_embedding_turns_total",
        "counter",
        "Batches run by the embedder, shared by requests.",
        TextCounts::batches,
    ),
];

/// Name, type, help, and value.
type EngineMetric = (&'static str, &'static str, &'static str, fn(&Stats) -> f64);

/// Metrics of each loaded model's engine. Totals start from 0 when a model is reloaded.
const ENGINE_METRICS: &[EngineMetric] = &[
    ("akunu_queue_requests", "gauge", "Requests that wait for a slot.", |s| s.waiting as f64),
    ("akunu_reading_requests", "gauge", "Requests whose prompts are being prefilled.", |s| s.reading as f64),
    ("akunu_running_requests", "gauge", "Requests that are being decoded.", |s| s.running as f64),
    ("akunu_paused_requests", "gauge", "Of these, requests that wait for memory of the KV cache.", |s| {
        s.paused as f64
    }),
    ("akunu_slots", "gauge", "Maximum concurrent requests.", |s| s.slots as f64),
    ("akunu_batch_rows", "gauge", "Rows of the last pass.", |s| s.rows as f64),
    ("akunu_kv_used_tokens", "gauge", "Positions of the KV cache in use.", |s| s.kv_tokens as f64),
    ("akunu_kv_kept_tokens", "gauge", "Positions kept for reuse by prompts with the same prefix.", |s| {
        s.kv_kept as f64
    }),
    ("akunu_kv_capacity_tokens", "gauge", "Positions of the KV cache.", |s| s.kv_capacity as f64),
    ("akunu_kv_known_blocks", "gauge", "Full blocks of the KV cache that prompts may share.", |s| {
        s.kv_known_blocks as f64
    }),
    ("akunu_kv_host_bytes", "gauge", "Memory of the host for the KV cache that was allocated so far.", |s| {
        s.tiers.host_bytes as f64
    }),
    ("akunu_kv_host_capacity_bytes", "gauge", "The most memory of the host for the KV cache.", |s| {
        s.tiers.host_capacity as f64
    }),
    ("akunu_kv_host_tokens", "gauge", "Positions of the KV cache in the host's memory.", |s| {
        s.tiers.host_tokens as f64
    }),
    ("akunu_kv_disk_bytes", "gauge", "Files of the KV cache on disk, of all models.", |s| {
        s.tiers.disk_bytes as f64
    }),
    ("akunu_kv_moved_tokens_total", "counter", "Tokens whose keys and values left the device.", |s| {
        s.tiers.moved_tokens as f64
    }),
    ("akunu_kv_returned_tokens_total", "counter", "Tokens whose keys and values came back to it.", |s| {
        s.tiers.returned_tokens as f64
    }),
    ("akunu_kv_warnings_total", "counter", "Unusable files and other failures of the cache on disk.", |s| {
        s.tiers.warnings as f64
    }),
    (
        "akunu_expert_hits_total",
        "counter",
        "Paged experts that were in memory when a pass needed them.",
        |s| s.experts.hits as f64,
    ),
    ("akunu_expert_misses_total", "counter", "Paged experts that were read from the model's file.", |s| {
        s.experts.misses as f64
    }),
    ("akunu_expert_file_bytes_total", "counter", "Bytes that were read for these.", |s| {
        s.experts.file_bytes as f64
    }),
    ("akunu_prompt_tokens_total", "counter", "Tokens of prompts that were prefilled.", |s| {
        s.prompt_tokens as f64
    }),
    ("akunu_reused_tokens_total", "counter", "Tokens of prompts that were found in the cache.", |s| {
        s.reused_tokens as f64
    }),
    ("akunu_prefix_hits_total", "counter", "Prompts with a substantial prefix in the cache.", |s| {
        s.prefix_hits as f64
    }),
    ("akunu_generated_tokens_total", "counter", "Tokens generated.", |s| s.generated_tokens as f64),
    ("akunu_passes_total", "counter", "Submissions to the device.", |s| s.steps as f64),
    ("akunu_longest_stall_seconds", "gauge", "Longest time between two tokens of a request.", |s| {
        s.longest_stall.as_secs_f64()
    }),
];

/// The same by vLLM's names, which routers and autoscalers of fleets read.
const VLLM_METRICS: &[EngineMetric] = &[
    ("vllm:num_requests_running", "gauge", "Requests in slots.", |s| (s.reading + s.running) as f64),
    ("vllm:num_requests_waiting", "gauge", "Requests that wait for a slot.", |s| s.waiting as f64),
    ("vllm:kv_cache_usage_perc", "gauge", "The part of the KV cache in use, from 0 to 1.", kv_usage),
    ("vllm:gpu_cache_usage_perc", "gauge", "The same by its older name.", kv_usage),
    ("vllm:prefix_cache_queries_total", "counter", "Tokens of prompts.", prompt_tokens),
    ("vllm:prefix_cache_hits_total", "counter", "Of these, tokens that were found in the cache.", |s| {
        s.reused_tokens as f64
    }),
    ("vllm:gpu_prefix_cache_queries_total", "counter", "The first by its older name.", prompt_tokens),
    ("vllm:gpu_prefix_cache_hits_total", "counter", "The second by its older name.", |s| {
        s.reused_tokens as f64
    }),
    ("vllm:prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens),
    ("vllm:generation_tokens_total", "counter", "Tokens generated.", |s| s.generated_tokens as f64),
];

const CACHE_CONFIG: &str = "vllm:cache_config_info";

fn kv_usage(stats: &Stats) -> f64 {
    stats.kv_tokens as f64 / stats.kv_capacity.max(1) as f64
}

fn prompt_tokens(stats: &Stats) -> f64 {
    (stats.prompt_tokens + stats.reused_tokens) as f64
}

#[derive(Debug, Default)]
struct Histogram {
    /// Counts between each bound and the one before.
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Histogram {
    fn observe(&self, time: Duration, times: u64) {
        if let Some(bucket) = BOUNDS.iter().position(|bound| time.as_secs_f64() <= *bound) {
            self.buckets[bucket].fetch_add(times, Ordering::Relaxed);
        }
        self.count.fetch_add(times, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds.saturating_mul(times), Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct MetricsPage {
    text: String,
}

impl MetricsPage {
    fn about(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let quoted = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", quoted(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }

    /// Histograms of all classes.
    fn histogram(&mut self, name: &str, help: &str, histograms: &[Histogram; 3]) {
        self.about(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (class, histogram) in CLASSES.iter().zip(histograms) {
            let mut below = 0;
            for (bound, count) in BOUNDS.iter().zip(&histogram.buckets) {
                below += count.load(Ordering::Relaxed);
                self.line(&bucket, &[("class", class), ("le", &bound.to_string())], below);
            }
            // Read last, so that it is not less than any bucket.
            let count = histogram.count.load(Ordering::Relaxed);
            self.line(&bucket, &[("class", class), ("le", "+Inf")], count);
            let seconds = Duration::from_nanos(histogram.nanoseconds.load(Ordering::Relaxed)).as_secs_f64();
            self.line(&format!("{name}_sum"), &[("class", class)], seconds);
            self.line(&format!("{name}_count"), &[("class", class)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let metrics = Metrics::default();
        metrics.first_token(0, Duration::from_millis(3));
        metrics.first_token(0, Duration::from_secs(40));
        metrics.first_token(-7, Duration::from_secs(2));
        metrics.next_tokens(0, Duration::from_millis(40), 4);
        metrics.next_tokens(1, Duration::from_secs(1), 1);
        metrics.next_tokens(0, Duration::from_secs(1), 0);
        metrics.answered("/v1/\"odd\"", 200);
        let models = Models::new(crate::ModelsOptions::default());
        let page = metrics.write(&models, &RequestMemory::new(7));
        for line in [
            "akunu_requests_total{route=\"/v1/\\\"odd\\\"\",status=\"200\"} 1",
            "akunu_time_to_first_token_seconds_bucket{class=\"normal\",le=\"0.0025\"} 0",
            "akunu_time_to_first_token_seconds_bucket{class=\"normal\",le=\"0.005\"} 1",
            "akunu_time_to_first_token_seconds_bucket{class=\"normal\",le=\"30\"} 1",
            "akunu_time_to_first_token_seconds_bucket{class=\"normal\",le=\"+Inf\"} 2",
            "akunu_time_to_first_token_seconds_sum{class=\"normal\"} 40.003",
            "akunu_time_to_first_token_seconds_sum{class=\"first\"} 2",
            "akunu_inter_token_seconds_bucket{class=\"normal\",le=\"0.01\"} 4",
            "akunu_inter_token_seconds_count{class=\"normal\"} 4",
            "akunu_inter_token_seconds_sum{class=\"normal\"} 0.04",
            "akunu_inter_token_seconds_bucket{class=\"last\",le=\"1\"} 1",
            "akunu_request_memory_limit_bytes 7",
            "akunu_model_loaded{model=\"akunu-tales\"} 0",
        ] {
            assert!(page.lines().any(|written| written == line), "{line}\n{page}");
        }
    }
}
