//! Advice at the end of `doctor`: sentences computed from what was found, and none where there is nothing to say.

use std::path::{Path, PathBuf};

use akunu::devices::Isa;
use akunu::human;
use akunu_hub::{Disk, SystemDisk};

use crate::commands::synth;

/// Context for which models are said to fit.
const CONTEXT: usize = 8192;
/// Parameters in a title, and the preset of `synth` whose size stands for them, in ascending order.
const SIZES: [(&str, &str); 6] = [
    ("1B", "llama-1b"),
    ("4B", "qwen3-4b"),
    ("8B", "qwen3-8b"),
    ("14B", "qwen3-14b"),
    ("32B", "qwen3-32b"),
    ("70B", "llama-70b"),
];
const QUANT: &str = "Q4_K_M";
/// Less free space than this is soon full of models.
const LITTLE_DISK: u64 = 10 << 30;

/// What advice depends on. `None` and empty are unknown, or do not exist on this system.
#[derive(Debug, Default)]
pub struct Findings {
    /// Of the default device, with the word for it.
    pub free: Option<(&'static str, u64)>,
    pub memory_total: Option<u64>,
    /// The smallest limit of the control groups.
    pub memory_limit: Option<u64>,
    /// Processors, and how many of them the control groups allow at a time.
    pub processors: usize,
    pub processor_limit: Option<f64>,
    pub threads: usize,
    /// Processes that wanted a processor, on average over the last minute.
    pub load: Option<f64>,
    /// The instruction set in `AKUNU_ISA`, or why it cannot be used.
    pub isa: Option<Result<Isa, String>>,
    pub best_isa: Option<Isa>,
    /// `powersave`, of drivers for which it means the lowest frequency.
    pub governor: Option<String>,
    /// `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// Whether an NVIDIA GPU is on the bus.
    pub nvidia: bool,
    pub gpu_is_default: bool,
    /// Why a GPU is not used.
    pub gpu_problem: Option<String>,
    /// The folder for models, its free space, and whether it can be written.
    pub hub: Option<(PathBuf, Option<u64>, bool)>,
    pub offline: bool,
}

/// Whole sentences, the most important first.
pub fn advice(found: &Findings) -> Vec<String> {
    let all = [
        found.free.map(fitting),
        memory_limit(found),
        gpu(found),
        isa(found),
        processors(found),
        load(found),
        governor(found),
        huge_pages(found),
        hub(found),
    ];
    all.into_iter().flatten().collect()
}

/// The largest of the usual models that fits.
fn fitting((memory, free): (&str, u64)) -> String {
    let sizes = || SIZES.iter().filter_map(|(title, preset)| Some((*title, needed(preset)?)));
    let told = format!("{} of {memory} are free", human(free));
    match sizes().rfind(|(_, bytes)| *bytes <= free) {
        Some((title, bytes)) => format!(
            "{told}: a model of {title} parameters at {QUANT} with a context of {CONTEXT} tokens fits (about {}).",
            human(bytes)
        ),
        None => {
            let least =
                sizes().next().map(|(title, bytes)| format!("of {title} parameters needs {}", human(bytes)));
            format!("{told}, which is little: a model {}. Close other programs.", least.unwrap_or_default())
        }
    }
}

/// Weights and KV cache of a preset, and a sixteenth for activations and tables.
fn needed(preset: &str) -> Option<u64> {
    synth::bytes(preset, QUANT, CONTEXT).map(|bytes| bytes + bytes / 16)
}

fn memory_limit(found: &Findings) -> Option<String> {
    let (limit, total) = (found.memory_limit?, found.memory_total?);
    (limit < total).then(|| {
        format!(
            "A control group limits the memory to {} of {}: raise its memory.max, or --memory of the container, for \
             larger models.",
            human(limit),
            human(total)
        )
    })
}

fn gpu(found: &Findings) -> Option<String> {
    match (&found.gpu_problem, found.nvidia && !found.gpu_is_default) {
        (Some(problem), _) => Some(format!("The GPU is not used: {}.", problem.trim_end_matches('.'))),
        (None, true) => Some(
            "There is an NVIDIA GPU, but not its driver: install NVIDIA's driver 525 or later, in a container start it \
             with access to the GPU, and run akunu doctor again."
                .to_string(),
        ),
        (None, false) => None,
    }
}

fn isa(found: &Findings) -> Option<String> {
    let best = found.best_isa?;
    match &found.isa {
        Some(Err(problem)) => Some(format!("AKUNU_ISA cannot be followed: {problem}.")),
        Some(Ok(isa)) if isa.is_canonical() && *isa < best => Some(format!(
            "AKUNU_ISA selects {}, but this processor has {}: unset it for full speed.",
            isa.name(),
            best.name()
        )),
        _ if best == Isa::Scalar => Some(
            "This processor has none of the instruction sets that kernels are written for, such as AVX2: models run, but \
             many times slower."
                .to_string(),
        ),
        _ => None,
    }
}

fn processors(found: &Findings) -> Option<String> {
    let limit = found.processor_limit.filter(|&limit| limit < found.processors as f64)?;
    Some(format!(
        "A control group allows {limit:.1} of {} processors, so {} {} used: raise its cpu.max, or --cpus of the \
         container, for more speed.",
        found.processors,
        found.threads,
        if found.threads == 1 { "thread is" } else { "threads are" }
    ))
}

fn load(found: &Findings) -> Option<String> {
    let load = found.load.filter(|&load| load >= 0.75 * found.processors.max(1) as f64)?;
    Some(format!(
        "Other programs use the processors (a load of {load:.1} on {}): measurements vary, and generation is slower \
         until they end.",
        found.processors
    ))
}

fn governor(found: &Findings) -> Option<String> {
    let governor = found.governor.as_ref()?;
    Some(format!(
        "The frequency governor is {governor}, which keeps the processor slow: sudo cpupower frequency-set -g performance"
    ))
}

fn huge_pages(found: &Findings) -> Option<String> {
    (found.huge_pages.as_deref() == Some("never")).then(|| {
        "Transparent huge pages are off, which makes reading weights slower: \
         echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
            .to_string()
    })
}

fn hub(found: &Findings) -> Option<String> {
    let (folder, free, can_write) = found.hub.as_ref()?;
    let folder = folder.display();
    if found.offline {
        return Some(
            "HF_HUB_OFFLINE is set: models are taken from the cache, and none is downloaded.".to_string(),
        );
    }
    if !can_write {
        return Some(format!(
            "Models cannot be downloaded to {folder}, which cannot be written: HF_HOME selects another folder."
        ));
    }
    let free = free.filter(|&free| free < LITTLE_DISK)?;
    Some(format!(
        "Only {} are free for models in {folder}: akunu rm removes one, and HF_HOME selects another folder.",
        human(free)
    ))
}

/// The governor, if it keeps the frequency low. The `powersave` of drivers that choose frequencies by themselves does not.
pub fn slow_governor(cpu: &Path) -> Option<String> {
    let read =
        |name: &str| Some(std::fs::read_to_string(cpu.join("cpufreq").join(name)).ok()?.trim().to_string());
    let by_itself = read("scaling_driver").is_some_and(|driver| {
        ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"].contains(&driver.as_str())
    });
    read("scaling_governor").filter(|governor| governor == "powersave" && !by_itself)
}

/// `madvise` of `always [madvise] never`.
pub fn selected(choices: &str) -> Option<String> {
    let (_, rest) = choices.split_once('[')?;
    Some(rest.split_once(']')?.0.to_string())
}

/// Whether a display or compute device of NVIDIA is on the PCI bus.
pub fn has_nvidia(devices: &Path) -> bool {
    let read = |device: &Path, name: &str| std::fs::read_to_string(device.join(name)).unwrap_or_default();
    let entries = std::fs::read_dir(devices).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.into_iter().any(|device| {
        read(&device, "vendor").trim() == "0x10de" && read(&device, "class").starts_with("0x03")
    })
}

/// The free space of a folder, or where it would be created, and whether it can be written.
pub fn folder_state(folder: &Path) -> (Option<u64>, bool) {
    let Some(existing) = folder.ancestors().find(|folder| folder.is_dir()) else { return (None, false) };
    let probe = existing.join(format!(".akunu-doctor-{}", std::process::id()));
    let can_write = std::fs::OpenOptions::new().write(true).create_new(true).open(&probe).is_ok();
    if can_write {
        // It is empty: if it cannot be removed, it does no harm.
        let _ = std::fs::remove_file(&probe);
    }
    (SystemDisk.free(existing), can_write)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Findings {
        Findings { processors: 8, threads: 8, best_isa: Some(Isa::Avx2), ..Findings::default() }
    }

    fn only(found: Findings) -> String {
        let mut all = advice(&found);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn nothing_is_said_about_a_machine_that_is_fine() {
        let fine = Findings {
            load: Some(1.0),
            processor_limit: Some(8.0),
            memory_total: Some(1 << 34),
            memory_limit: Some(1 << 34),
            huge_pages: Some("madvise".into()),
            hub: Some(("/models".into(), Some(1 << 40), true)),
            isa: Some(Ok(Isa::Avx2)),
            nvidia: true,
            gpu_is_default: true,
            ..plain()
        };
        assert_eq!(advice(&fine), Vec::<String>::new());
    }

    #[test]
    fn models_that_fit_grow_with_the_memory() {
        let fits = |gib: u64| only(Findings { free: Some(("memory", gib << 30)), ..plain() });
        assert!(
            fits(12).starts_with("12.00 GiB of memory are free: a model of 14B parameters at Q4_K_M with"),
            "{}",
            fits(12)
        );
        let titles = [2, 5, 8, 12, 24, 64].map(|gib| fits(gib).split(' ').nth(9).unwrap().to_string());
        assert_eq!(titles, ["1B", "4B", "8B", "14B", "32B", "70B"].map(String::from));
        assert!(fits(0).contains("a model of 1B parameters needs"), "{}", fits(0));
    }

    #[test]
    fn each_finding_has_its_sentence() {
        let limited = Findings { memory_total: Some(8 << 30), memory_limit: Some(1 << 30), ..plain() };
        assert!(only(limited).contains("limits the memory to 1.00 GiB of 8.00 GiB"));
        let quota = Findings { processor_limit: Some(1.5), threads: 1, ..plain() };
        assert!(only(quota).contains("allows 1.5 of 8 processors, so 1 thread is used"));
        assert!(only(Findings { load: Some(6.0), ..plain() }).contains("a load of 6.0 on 8"));
        assert!(only(Findings { governor: Some("powersave".into()), ..plain() }).contains("cpupower"));
        assert!(only(Findings { huge_pages: Some("never".into()), ..plain() }).contains("echo madvise"));
        assert!(
            only(Findings { isa: Some(Ok(Isa::Scalar)), ..plain() })
                .contains("scalar, but this processor has avx2")
        );
        assert!(only(Findings { isa: Some(Err("no".into())), ..plain() }).contains("AKUNU_ISA"));
        assert!(only(Findings { best_isa: Some(Isa::Scalar), ..plain() }).contains("many times slower"));
        assert!(only(Findings { nvidia: true, ..plain() }).contains("driver 525"));
        let problem = Some("no libnvrtc; install it.".to_string());
        assert_eq!(
            only(Findings { nvidia: true, gpu_problem: problem, ..plain() }),
            "The GPU is not used: no libnvrtc; install it."
        );
        let hub =
            |free, can_write| Findings { hub: Some(("/models".into(), Some(free), can_write)), ..plain() };
        assert!(only(hub(1 << 30, true)).contains("Only 1.00 GiB are free for models in /models"));
        assert!(only(hub(1 << 40, false)).contains("cannot be written"));
        assert!(only(Findings { offline: true, ..hub(1 << 40, true) }).contains("HF_HUB_OFFLINE"));
    }

    #[test]
    fn files_of_the_system_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("cpu0/cpufreq/scaling_governor", "powersave\n");
        write("cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
        let cpu = dir.path().join("cpu0");
        assert_eq!(slow_governor(&cpu), Some("powersave".into()));
        write("cpu0/cpufreq/scaling_driver", "intel_pstate\n");
        assert_eq!(slow_governor(&cpu), None);

        write("pci/0/vendor", "0x10de\n");
        write("pci/0/class", "0x020000\n");
        assert!(!has_nvidia(&dir.path().join("pci")));
        write("pci/1/vendor", "0x10de\n");
        write("pci/1/class", "0x030200\n");
        assert!(has_nvidia(&dir.path().join("pci")));

        assert_eq!(selected("always [madvise] never\n"), Some("madvise".into()));
        let (free, can_write) = folder_state(&dir.path().join("not/yet/there"));
        assert!(can_write && (cfg!(not(unix)) || free.is_some()));
        let is_file = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path().is_file();
        assert!(!std::fs::read_dir(dir.path()).unwrap().any(is_file));
    }
}
