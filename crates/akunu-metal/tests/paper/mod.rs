//! A mock GPU that records what it is asked to do.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use akunu_arch::WeightProvider;
use akunu_format::Region;
use akunu_gpu::{Gpu, Recording, Tuning, Word};
use akunu_kernels::{Function, Pass};
use akunu_metal::CHIPS;
use akunu_plan::{Capabilities, DeviceError, InPlace};

pub struct Sheet {
    name: String,
    bytes: RefCell<Vec<u8>>,
}

impl std::fmt::Debug for Sheet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl PartialEq for Sheet {
    fn eq(&self, other: &Sheet) -> bool {
        std::ptr::eq(self, other)
    }
}

pub type Recorded = Word<Rc<Function>, Rc<Sheet>>;

/// What was written to memory and submitted since the last look.
#[derive(Debug, Default)]
pub struct Words {
    writes: Vec<(Rc<Sheet>, usize, Vec<u8>)>,
    pub words: Vec<Recorded>,
}

#[derive(Debug)]
pub struct Paper {
    capabilities: Capabilities,
    tuning: Tuning,
    /// By region and offset.
    tensors: BTreeMap<(usize, usize), String>,
    planes: usize,
    seen: Words,
    /// The number of command buffers that were begun.
    pub begun: usize,
    pub submitted: usize,
    clock: u64,
    /// The next command buffer that is waited for fails.
    pub fails: bool,
    pass: Option<Rc<Sheet>>,
    /// An action after a number of further submissions.
    pub later: Option<(usize, Then)>,
}

/// An action of the GPU or of another thread while a chain runs.
#[derive(Debug)]
pub enum Then {
    FindsAStop,
    Cancels(Arc<AtomicBool>),
}

impl Paper {
    pub fn new(model: &dyn WeightProvider) -> Paper {
        let (_, chip) = CHIPS[0];
        let mut tensors = BTreeMap::new();
        for tensor in model.tensors() {
            for (plane, place) in tensor.places().enumerate() {
                let start = model.regions()[place.region].bytes().as_ptr().addr();
                let name = if plane == 0 { tensor.name.clone() } else { format!("{}.{plane}", tensor.name) };
                tensors.insert((start, place.offset), name);
            }
        }
        Paper {
            capabilities: Capabilities { name: "paper", samples: false, ..chip.capabilities(String::new()) },
            tuning: chip.tuning(),
            tensors,
            planes: 0,
            seen: Words::default(),
            begun: 0,
            submitted: 0,
            clock: 0,
            fails: false,
            pass: None,
            later: None,
        }
    }

    pub fn take(&mut self) -> Words {
        std::mem::take(&mut self.seen)
    }

    /// Forgets what was recorded before.
    pub fn forget(&mut self) {
        (self.seen, self.begun, self.submitted, self.clock) = (Words::default(), 0, 0, 0);
    }

    /// The tuning for what is prepared or submitted from now on.
    pub fn tuning_mut(&mut self) -> &mut Tuning {
        &mut self.tuning
    }

    fn sheet(&mut self, name: String, bytes: Vec<u8>) -> Rc<Sheet> {
        Rc::new(Sheet { name, bytes: RefCell::new(bytes) })
    }
}

impl Gpu for Paper {
    type Buffer = Rc<Sheet>;
    type Pipeline = Rc<Function>;
    type Commands = Recording<Rc<Function>, Rc<Sheet>>;
    type Indirect = Recording<Rc<Function>, Rc<Sheet>>;
    type Pending = ();

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<Rc<Sheet>, DeviceError> {
        let sheet = self.sheet(what.into(), vec![0; bytes as usize]);
        if what == "pass" {
            self.pass = Some(Rc::clone(&sheet));
        }
        Ok(sheet)
    }

    fn allocate_unset(&mut self, what: &str, bytes: u64) -> Result<Rc<Sheet>, DeviceError> {
        if what != "planes of a weight" {
            return self.allocate(what, bytes);
        }
        self.planes += 1;
        Ok(self.sheet(format!("planes {}", self.planes), vec![0; bytes as usize]))
    }

    fn map(
        &mut self,
        region: &Region,
        offset: usize,
        bytes: usize,
    ) -> Result<Option<(Rc<Sheet>, usize)>, DeviceError> {
        if !InPlace::is_bindable(region, offset) {
            return Ok(None);
        }
        let start = region.bytes().as_ptr().addr();
        let name = self.tensors[&(start, offset)].clone();
        // As if a page began 8 bytes earlier.
        let mut page = vec![0; 8];
        page.extend(&region.bytes()[offset..offset + bytes]);
        Ok(Some((self.sheet(name, page), 8)))
    }

    fn write(&mut self, buffer: &Rc<Sheet>, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        buffer.bytes.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.seen.writes.push((Rc::clone(buffer), offset, bytes.to_vec()));
        Ok(())
    }

    fn read(&mut self, buffer: &Rc<Sheet>, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(&buffer.bytes.borrow()[offset..offset + bytes.len()]);
        Ok(())
    }

    fn copy(&mut self, _: &Self::Buffer, _: &Self::Buffer, _: u64) -> Result<(), DeviceError> {
        unreachable!("weights go elsewhere")
    }

    fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<Rc<Function>>, DeviceError> {
        Ok(functions.iter().map(|function| Rc::new((*function).clone())).collect())
    }

    fn indirect(&mut self, _dispatches: usize, _buffers: usize) -> Result<Self::Indirect, DeviceError> {
        Ok(Recording::default())
    }

    fn begin(&mut self) -> Result<Self::Commands, DeviceError> {
        self.begun += 1;
        Ok(Recording::default())
    }

    fn submit(&mut self, commands: Self::Commands, _followed: bool) -> Result<(), DeviceError> {
        self.seen.words.extend(commands.0);
        self.submitted += 1;
        if let Some((left, then)) = &mut self.later {
            *left -= 1;
            match then {
                _ if *left > 0 => {}
                Then::Cancels(cancel) => cancel.store(true, Ordering::Relaxed),
                Then::FindsAStop => {
                    let mut pass = self.pass.as_ref().unwrap().bytes.borrow_mut();
                    bytemuck::from_bytes_mut::<Pass>(&mut pass).stopped = 1;
                }
            }
            self.later.take_if(|(left, _)| *left == 0);
        }
        Ok(())
    }

    fn finish(&mut self, (): ()) -> Result<u64, DeviceError> {
        if std::mem::take(&mut self.fails) {
            return Err(DeviceError::Failed { device: "paper", message: "torn".into() });
        }
        self.clock += 10;
        Ok(self.clock)
    }
}

impl Words {
    /// The last bytes written to a buffer.
    pub fn written(&self, name: &str) -> Option<&[u8]> {
        let write = self.writes.iter().rev().find(|(sheet, ..)| sheet.name == name);
        write.map(|(_, _, bytes)| &bytes[..])
    }

    /// Renders one line per write and launch.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for (sheet, offset, bytes) in &self.writes {
            let _ = writeln!(text, "write {} {}", place(sheet, *offset), words(bytes));
        }
        text + &render(&self.words)
    }
}

/// Renders one line per launch.
pub fn render(words: &[Recorded]) -> String {
    let mut text = String::new();
    let launches = words.chunk_by(|word, _| !matches!(word, Word::Dispatch { .. } | Word::Run(_)));
    launches.for_each(|launch| render_launch(&mut text, launch));
    text
}

fn place(sheet: &Sheet, offset: usize) -> String {
    if offset == 0 { sheet.name.clone() } else { format!("{}+{offset}", sheet.name) }
}

/// In hexadecimal, without trailing zeros.
fn words(bytes: &[u8]) -> String {
    let words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
    let words: Vec<String> = words.map(|word| format!("{word:x}")).collect();
    let end = words.iter().rposition(|word| word != "0").map_or(0, |last| last + 1);
    // The rows of a chunk are similar, so a few suffice.
    let most = if words[..end].len() > 24 { 8 } else { end };
    let rest = if most < end { format!(" … ({} bytes)", bytes.len()) } else { String::new() };
    format!("[{}]{rest}", words[..most].join(" "))
}

/// `|` is a barrier, `#` the index of an argument.
fn render_launch(text: &mut String, words_of: &[Recorded]) {
    let (mut function, mut shared) = (None, 0);
    for word in words_of {
        match word {
            Word::Barrier => text.push_str("| "),
            Word::Run(words) => {
                let _ = writeln!(text, "run {{\n{}}}", render(words));
            }
            Word::Pipeline(pipeline) => {
                text.push_str(&pipeline.name);
                function = Some(pipeline);
            }
            Word::Threadgroup(bytes) => shared = *bytes,
            Word::Dispatch { groups: [x, y, z], threads } => {
                let _ = writeln!(text, ", {x}x{y}x{z} of {threads}, {shared} B");
            }
            Word::Buffers(buffers) => {
                let arguments = &function.unwrap().arguments;
                let (own, rest) = buffers.split_at(arguments.len());
                for (name, (sheet, offset)) in arguments.iter().zip(own) {
                    let _ = write!(text, " {name}={}", place(sheet, *offset));
                }
                let [pass, scratch, (params, at)] = rest else { panic!("{rest:?}") };
                assert_eq!(
                    (place(&pass.0, pass.1), place(&scratch.0, scratch.1)),
                    ("pass".into(), "scratch".into())
                );
                let bytes = &params.bytes.borrow()[*at..*at + 64];
                let _ = write!(text, " #{}={}{}", buffers.len() - 1, place(params, *at), words(bytes));
            }
        }
    }
}
