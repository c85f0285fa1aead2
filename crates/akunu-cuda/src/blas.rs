//! cuBLASLt: products of f16, and of FP8, with f32 accumulation. Names and signatures are those of `cublasLt.h`, the same in
//! CUDA 12 and 13.
//!
//! Its matrices are column-major, so our rows are its columns: weights are `inputs × outputs`, transposed, activations
//! `inputs × rows`, and the result is `outputs × rows`.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::sync::OnceLock;

use akunu_kernels::LibraryProduct;

use crate::CudaError;
use crate::context::Context;
use crate::driver::{Address, Handle, functions};
use crate::library::{CudaFolders, Search};
use crate::memory::Memory;
use crate::stream::{Event, Stream};

functions! {
    Functions, "install CUDA 12 or later",
    property = "cublasLtGetProperty" (c_int, *mut c_int);
    create = "cublasLtCreate" (*mut Handle);
    destroy = "cublasLtDestroy" (Handle);
    create_product = "cublasLtMatmulDescCreate" (*mut Handle, c_int, c_int);
    destroy_product = "cublasLtMatmulDescDestroy" (Handle);
    set_product = "cublasLtMatmulDescSetAttribute" (Handle, c_int, *const c_void, usize);
    create_layout = "cublasLtMatrixLayoutCreate" (*mut Handle, c_int, u64, u64, i64);
    destroy_layout = "cublasLtMatrixLayoutDestroy" (Handle);
    create_preference = "cublasLtMatmulPreferenceCreate" (*mut Handle);
    destroy_preference = "cublasLtMatmulPreferenceDestroy" (Handle);
    set_preference = "cublasLtMatmulPreferenceSetAttribute" (Handle, c_int, *const c_void, usize);
    heuristic = "cublasLtMatmulAlgoGetHeuristic" (
        Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Found, *mut c_int
    );
    configuration = "cublasLtMatmulAlgoConfigGetAttribute" (
        *const [u64; 8], c_int, *mut c_int, usize, *mut usize
    );
    matmul = "cublasLtMatmul" (
        Handle, Handle, *const f32, Address, Handle, Address, Handle, *const f32, Address, Handle, Address, Handle,
        *const [u64; 8], Address, usize, Handle
    );
}

/// `cublasLtMatmulHeuristicResult_t`, which begins with a `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Found>() == 96);

const COMPUTE_32F: c_int = 68;
const TYPE_F32: c_int = 0;
const TYPE_F16: c_int = 2;
const TYPE_E4M3: c_int = 28;
const PRODUCT_TRANSPOSE_A: c_int = 3;
const PRODUCT_EPILOGUE: c_int = 7;
const PRODUCT_BIAS: c_int = 8;
/// For A; that of B follows, as for the modes.
const PRODUCT_SCALE: c_int = 17;
const PRODUCT_SCALE_MODE: c_int = 31;
/// A scale for each output, and one for each row.
const SCALES_OF_ROWS: c_int = 3;
const TRANSPOSED: c_int = 1;
/// Adds to each output the bias of its column of weights, of the output's type.
const EPILOGUE_BIAS: c_int = 4;
const PREFERENCE_WORKSPACE: c_int = 1;
const CONFIGURATION_TILE: c_int = 1;
/// Outputs that a thread block computes at once.
const TILE_128_BY_128: c_int = 20;
/// For A; those of B, C and D follow.
const PREFERENCE_ALIGNMENT: c_int = 5;
/// The greatest alignment that is announced to the library.
const MOST_ALIGNMENT: u32 = 256;

/// Workspace of a product: NVIDIA's recommendation for Hopper.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;
/// Algorithms that are asked for.
const CANDIDATES: usize = 16;
/// How often each is run, if timing is on.
const ROUNDS: usize = 5;

/// Without a residual, a product of this many inputs or more takes the library's first choice: its sums take long, and
/// storing them does not matter.
const LONG: u32 = 4096;
/// The fewest tiles of a product for each multiprocessor for which tiles of 128 × 128 are preferred.
const TILES_EACH: f32 = 1.5;

fn check(call: &'static str, code: c_int) -> Result<(), CudaError> {
    let (name, message) = match code {
        0 => return Ok(()),
        1 => ("NOT_INITIALIZED", "the library could not begin, or there is no driver for it"),
        3 => ("ALLOC_FAILED", "memory is full"),
        7 => ("INVALID_VALUE", "an argument that it does not take"),
        8 => ("ARCH_MISMATCH", "the card does not have what this needs"),
        11 => ("MAPPING_ERROR", "memory could not be reached"),
        13 => ("EXECUTION_FAILED", "the product could not be launched"),
        14 => ("INTERNAL_ERROR", "an error inside the library"),
        15 => ("NOT_SUPPORTED", "no way to do this product"),
        16 => ("LICENSE_ERROR", "a licence is missing"),
        _ => ("unknown", "an error that is not in its documentation"),
    };
    Err(CudaError::Blas { call, code, name, message })
}

/// The loaded library.
#[derive(Debug)]
pub(crate) struct Library {
    functions: Functions,
    pub(crate) version: [i32; 3],
}

impl Library {
    /// Loads it, once for the process. `driver_major` as of [`Search::blas`].
    pub(crate) fn get(folders: &CudaFolders, driver_major: i32) -> Result<&'static Library, CudaError> {
        static LIBRARY: OnceLock<Result<Library, CudaError>> = OnceLock::new();
        let open = || Library::open(&Search::with(folders), driver_major);
        LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    fn open(search: &Search, driver_major: i32) -> Result<Library, CudaError> {
        let (library, file) = search.blas(driver_major)?;
        let functions = Functions::load(library, file)?;
        let mut version = [0; 3];
        for (part, value) in (0..).zip(&mut version) {
            // SAFETY: the function has this signature in `cublasLt.h`, and `value` is a place for the one number that
            // it writes.
            check("cublasLtGetProperty", unsafe { (functions.property)(part, value) })?;
        }
        Ok(Library { functions, version })
    }

    pub(crate) fn file(&self) -> &str {
        &self.functions.file
    }

    /// 13.1.0
    pub(crate) fn version(&self) -> String {
        self.version.map(|part| part.to_string()).join(".")
    }
}

/// An object created by the library, destroyed on drop.
#[derive(Debug)]
struct Owned {
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
}

impl Owned {
    fn new(
        call: &'static str,
        destroy: unsafe extern "C" fn(Handle) -> c_int,
        create: impl FnOnce(*mut Handle) -> c_int,
    ) -> Result<Owned, CudaError> {
        let mut handle = std::ptr::null_mut();
        check(call, create(&mut handle))?;
        Ok(Owned { handle, destroy })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the handle was created by the same library with the matching function, and is destroyed once.
        unsafe { (self.destroy)(self.handle) };
    }
}

/// The properties for which an algorithm is chosen; addresses count by their alignment only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    rows: u32,
    inputs: u32,
    outputs: u32,
    out_stride: u32,
    bias: bool,
    residual: bool,
    /// Of FP8.
    scaled: bool,
    out_f16: bool,
    alignments: [u32; 4],
}

impl Shape {
    /// Chooses from algorithms in the library's order of preference, always in the same way. The library prefers tiles
    /// of 128 × 256, one of which fills a multiprocessor. Two of 128 × 128 fit, so one is multiplied while the other is
    /// stored. With outputs of f32 and few inputs this is faster by a fifth, with a residual, which the library does not
    /// ask about, by a third (measured on an H200).
    fn choose(&self, functions: &Functions, algorithms: &[Found]) -> Option<Found> {
        let overlaps = |found: &&Found| {
            found.waves >= TILES_EACH && functions.tile(found).is_ok_and(|tile| tile == TILE_128_BY_128)
        };
        let preferred = match self.scaled {
            // Products without a workspace may run beside others.
            true => algorithms.iter().find(|found| found.workspace == 0),
            false if self.residual || self.inputs < LONG => algorithms.iter().find(overlaps),
            false => None,
        };
        preferred.or(algorithms.first()).copied()
    }
}

impl Functions {
    fn tile(&self, found: &Found) -> Result<c_int, CudaError> {
        let (mut tile, mut written) = (0, 0);
        // SAFETY: the algorithm came from the library, and it writes at most a number to `tile`, and the size of that.
        let asked = unsafe {
            let bytes = size_of::<c_int>();
            (self.configuration)(&found.algorithm, CONFIGURATION_TILE, &mut tile, bytes, &mut written)
        };
        check("cublasLtMatmulAlgoConfigGetAttribute", asked)?;
        Ok(tile)
    }
}

/// A product's descriptor. The addresses of its bias and of the scales of its weights and rows are a part of it.
fn describe(
    functions: &Functions,
    bias: Option<Address>,
    scales: Option<[Address; 2]>,
) -> Result<Owned, CudaError> {
    let product = Owned::new("cublasLtMatmulDescCreate", functions.destroy_product, |to| {
        // SAFETY: `to` is a place for the handle that the function writes.
        unsafe { (functions.create_product)(to, COMPUTE_32F, TYPE_F32) }
    })?;
    let set = |attribute: c_int, value: *const c_void, bytes: usize| {
        // SAFETY: the handle is valid, and the attribute's value has the given size.
        let set = unsafe { (functions.set_product)(product.handle, attribute, value, bytes) };
        check("cublasLtMatmulDescSetAttribute", set)
    };
    set(PRODUCT_TRANSPOSE_A, std::ptr::from_ref(&TRANSPOSED).cast(), size_of::<c_int>())?;
    if let Some(bias) = bias {
        set(PRODUCT_EPILOGUE, std::ptr::from_ref(&EPILOGUE_BIAS).cast(), size_of::<c_int>())?;
        set(PRODUCT_BIAS, std::ptr::from_ref(&bias).cast(), size_of::<Address>())?;
    }
    for (operand, scales) in (0..).zip(scales.into_iter().flatten()) {
        set(PRODUCT_SCALE + operand, std::ptr::from_ref(&scales).cast(), size_of::<Address>())?;
        let mode = std::ptr::from_ref(&SCALES_OF_ROWS).cast();
        set(PRODUCT_SCALE_MODE + operand, mode, size_of::<c_int>())?;
    }
    Ok(product)
}

/// The descriptors of a product's matrices.
#[derive(Debug)]
struct Layouts {
    weight: Owned,
    x: Owned,
    out: Owned,
}

impl Layouts {
    fn new(functions: &Functions, shape: &Shape) -> Result<Layouts, CudaError> {
        let Shape { rows, inputs, outputs, out_stride, scaled, out_f16, .. } = *shape;
        let operands = if scaled { TYPE_E4M3 } else { TYPE_F16 };
        let layout = |kind, down: u32, across: u32, stride: u32| {
            Owned::new("cublasLtMatrixLayoutCreate", functions.destroy_layout, |to| {
                // SAFETY: `to` is a place for the handle that the function writes.
                unsafe { (functions.create_layout)(to, kind, down.into(), across.into(), stride.into()) }
            })
        };
        Ok(Layouts {
            weight: layout(operands, inputs, outputs, inputs)?,
            x: layout(operands, inputs, rows, inputs)?,
            out: layout(if out_f16 { TYPE_F16 } else { TYPE_F32 }, outputs, rows, out_stride)?,
        })
    }

    /// Algorithms for a product of them, in the library's order of preference.
    fn algorithms(
        &self,
        functions: &Functions,
        handle: Handle,
        product: &Owned,
        shape: &Shape,
    ) -> Result<Vec<Found>, CudaError> {
        let preference = Owned::new("cublasLtMatmulPreferenceCreate", functions.destroy_preference, |to| {
            // SAFETY: `to` is a place for the handle that the function writes.
            unsafe { (functions.create_preference)(to) }
        })?;
        let set = |attribute: c_int, value: *const c_void, bytes: usize| {
            // SAFETY: the handle is valid, and the attribute's value has the given size.
            let set = unsafe { (functions.set_preference)(preference.handle, attribute, value, bytes) };
            check("cublasLtMatmulPreferenceSetAttribute", set)
        };
        set(PREFERENCE_WORKSPACE, std::ptr::from_ref(&WORKSPACE_BYTES).cast(), 8)?;
        for (attribute, alignment) in (PREFERENCE_ALIGNMENT..).zip(&shape.alignments) {
            set(attribute, std::ptr::from_ref(alignment).cast(), 4)?;
        }
        let (mut found, mut count) = ([Found::default(); CANDIDATES], 0);
        // SAFETY: all handles are valid; the library writes at most the requested number of results to an array of
        // that size, and their number.
        let asked = unsafe {
            (functions.heuristic)(
                handle,
                product.handle,
                self.weight.handle,
                self.x.handle,
                self.out.handle,
                self.out.handle,
                preference.handle,
                CANDIDATES as c_int,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        check("cublasLtMatmulAlgoGetHeuristic", asked)?;
        let count = usize::try_from(count).unwrap_or(0).min(CANDIDATES);
        let usable = |found: &&Found| found.state == 0 && found.workspace as u64 <= WORKSPACE_BYTES;
        Ok(found[..count].iter().filter(usable).copied().collect())
    }
}

/// A library context, and the workspace, which products use one at a time.
#[derive(Debug)]
struct Shared {
    library: &'static Library,
    handle: Owned,
    workspace: Memory,
}

/// What products of a shape share: the layouts and the chosen algorithm.
#[derive(Clone, Debug)]
struct Chosen {
    layouts: Rc<Layouts>,
    algorithm: Found,
}

/// A product with its addresses.
#[derive(Debug)]
pub(crate) struct BoundProduct {
    shared: Rc<Shared>,
    product: Owned,
    chosen: Chosen,
    shape: Shape,
    x: Address,
    weight: Address,
    out: Address,
    residual: Option<Address>,
}

impl BoundProduct {
    /// Whether two products can run at the same time: they read the same rows, add nothing, need no workspace, and write
    /// different columns of the same rows, or different memory.
    pub(crate) fn runs_beside(&self, other: &BoundProduct) -> bool {
        let alone = |of: &BoundProduct| of.chosen.algorithm.workspace == 0 && of.residual.is_none();
        let (first, last) = if self.out <= other.out { (self, other) } else { (other, self) };
        let number = if first.shape.out_f16 { 2 } else { 4 };
        let apart = last.out - first.out;
        let width = |of: &BoundProduct| u64::from(of.shape.outputs) * number;
        let stride = u64::from(first.shape.out_stride) * number;
        let beside = first.shape.out_stride == last.shape.out_stride
            && apart >= width(first)
            && apart + width(last) <= stride;
        let behind = apart >= stride * u64::from(first.shape.rows);
        alone(self) && alone(other) && self.x == other.x && (beside || behind)
    }

    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.launch_with(stream, &self.chosen.algorithm)
    }

    fn launch_with(&self, stream: &Stream, found: &Found) -> Result<(), CudaError> {
        let (functions, layouts) = (&self.shared.library.functions, &self.chosen.layouts);
        let (one, share) = (1.0f32, if self.residual.is_some() { 1.0f32 } else { 0.0 });
        // SAFETY: all handles are valid; the addresses and extents were checked against the table when it was
        // prepared, for the rows of the layouts; the scalar factors are read before the call returns.
        let launched = unsafe {
            (functions.matmul)(
                self.shared.handle.handle,
                self.product.handle,
                &one,
                self.weight,
                layouts.weight.handle,
                self.x,
                layouts.x.handle,
                &share,
                self.residual.unwrap_or(self.out),
                layouts.out.handle,
                self.out,
                layouts.out.handle,
                &found.algorithm,
                self.shared.workspace.address,
                self.shared.workspace.bytes as usize,
                stream.handle(),
            )
        };
        check("cublasLtMatmul", launched)
    }
}

/// Chooses an algorithm for each shape once.
#[derive(Debug)]
pub(crate) struct Blas {
    shared: Rc<Shared>,
    chosen: HashMap<Shape, Chosen>,
    context: Rc<Context>,
    /// Algorithms are timed and the fastest is used; another start of the program may choose differently.
    timed: bool,
}

impl Blas {
    pub(crate) fn new(
        context: &Rc<Context>,
        library: &'static Library,
        timed: bool,
    ) -> Result<Blas, CudaError> {
        let functions = &library.functions;
        // SAFETY: `to` is a place for the handle that the function writes; the card's context is current on this
        // thread.
        let create = |to| unsafe { (functions.create)(to) };
        let handle = Owned::new("cublasLtCreate", functions.destroy, create)?;
        let shared = Shared { library, handle, workspace: Memory::new(context, WORKSPACE_BYTES)? };
        Ok(Blas { shared: Rc::new(shared), chosen: HashMap::new(), context: Rc::clone(context), timed })
    }

    /// Whether it multiplies FP8 with scales for rows.
    pub(crate) fn scales_rows(&self) -> bool {
        self.shared.library.version >= [12, 9, 0]
    }

    /// Binds a product and runs it once: what the library loads on first use must not happen during a capture.
    pub(crate) fn bind(
        &mut self,
        product: &LibraryProduct,
        bindings: &[Address],
        stream: &Stream,
    ) -> Result<BoundProduct, CudaError> {
        let place = |binding: usize| bindings.get(binding).copied().unwrap_or(0);
        let (x, weight, out) = (place(product.x), place(product.weight), place(product.out));
        let residual = product.residual.map(place);
        let bias = product.bias.map(place);
        let scales = product.scales.map(|[of_rows, of_weights]| [place(of_weights), place(of_rows)]);
        let alignment = |address: Address| 1 << address.trailing_zeros().min(MOST_ALIGNMENT.ilog2());
        let shape = Shape {
            rows: product.rows,
            inputs: product.inputs,
            outputs: product.outputs,
            out_stride: product.out_stride,
            bias: bias.is_some(),
            residual: residual.is_some(),
            scaled: scales.is_some(),
            out_f16: product.out_f16,
            alignments: [weight, x, residual.unwrap_or(out), out].map(alignment),
        };
        let functions = &self.shared.library.functions;
        let product = describe(functions, bias, scales)?;
        if let Some(chosen) = self.chosen.get(&shape) {
            let (shared, chosen) = (Rc::clone(&self.shared), chosen.clone());
            return Ok(BoundProduct { shared, product, chosen, shape, x, weight, out, residual });
        }
        let layouts = Layouts::new(functions, &shape)?;
        let algorithms = layouts.algorithms(functions, self.shared.handle.handle, &product, &shape)?;
        let Some(algorithm) = shape.choose(functions, &algorithms) else {
            let (rows, inputs, outputs) = (shape.rows, shape.inputs, shape.outputs);
            return Err(CudaError::NoProduct { rows, inputs, outputs });
        };
        let chosen = Chosen { layouts: Rc::new(layouts), algorithm };
        let shared = Rc::clone(&self.shared);
        let mut bound = BoundProduct { shared, product, chosen, shape, x, weight, out, residual };
        bound.launch(stream)?;
        stream.synchronise()?;
        if self.timed {
            bound.chosen.algorithm = self.fastest(&bound, &algorithms, stream)?;
        }
        // Buffers are empty before the first pass, as on every device.
        let written =
            u64::from(shape.rows.saturating_sub(1)) * u64::from(shape.out_stride) + u64::from(shape.outputs);
        stream.zero(out, written * if shape.out_f16 { 2 } else { 4 })?;
        stream.synchronise()?;
        self.chosen.insert(shape, bound.chosen.clone());
        Ok(bound)
    }

    fn fastest(
        &self,
        bound: &BoundProduct,
        algorithms: &[Found],
        stream: &Stream,
    ) -> Result<Found, CudaError> {
        let events = [Event::timed(&self.context)?, Event::timed(&self.context)?];
        let mut best = (u64::MAX, bound.chosen.algorithm);
        for algorithm in algorithms {
            // A first launch loads it; algorithms that fail are skipped.
            if bound.launch_with(stream, algorithm).is_err() {
                continue;
            }
            stream.record(&events[0])?;
            for _ in 0..ROUNDS {
                bound.launch_with(stream, algorithm)?;
            }
            stream.record(&events[1])?;
            events[1].synchronise()?;
            let ns = events[1].since(&events[0])?;
            if ns < best.0 {
                best = (ns, *algorithm);
            }
        }
        Ok(best.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If it is installed, everything that does not need a card is tested.
    fn installed() -> Option<Library> {
        match Library::open(&crate::library::tests::search(), 13) {
            Ok(library) => Some(library),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn products_are_described_in_values_that_the_library_takes() {
        let Some(library) = installed() else { return };
        assert!(library.version[0] >= 12, "{:?}", library.version);
        let alignments = [256, 16, 4, 4];
        let scales = Some([0x2000, 0x3000]);
        for (bias, scales, out_f16) in
            [(None, None, false), (Some(0x1000), None, false), (None, None, true), (None, scales, false)]
        {
            let shape = Shape {
                rows: 77,
                inputs: 576,
                outputs: 1536,
                out_stride: 1540,
                bias: bias.is_some(),
                residual: false,
                scaled: scales.is_some(),
                out_f16,
                alignments,
            };
            let product = describe(&library.functions, bias, scales).unwrap();
            let layouts = Layouts::new(&library.functions, &shape).unwrap();
            // Without a library context no algorithm can be chosen, which is a specific error.
            let none = layouts.algorithms(&library.functions, std::ptr::null_mut(), &product, &shape);
            assert!(
                matches!(none, Err(CudaError::Blas { call: "cublasLtMatmulAlgoGetHeuristic", .. })),
                "{none:?}"
            );
        }
    }

    #[test]
    fn an_error_names_the_call_and_the_status() {
        let error = check("cublasLtMatmul", 15).unwrap_err().to_string();
        assert!(error.starts_with("cublasLtMatmul gave CUBLAS_STATUS_NOT_SUPPORTED (15)"), "{error}");
    }
}
