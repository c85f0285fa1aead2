//! Arguments and results: every pointer of the caller is read and written here.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::boundary::{Failure, Status};

/// Passed as the length of a text that is null-terminated.
pub const AKUNU_TO_NULL: usize = usize::MAX;

/// No struct of this interface will be larger than this; a greater `size` was not initialised.
const LARGEST: usize = 4096;

/// A plain struct that begins with its own size, so that fields can be added later.
///
/// # Safety
/// `repr(C)`, its first field a `u32`, no padding, and any bits are a value of it.
pub(crate) unsafe trait SizedStruct: Copy {
    const NAME: &'static str;
    /// The size of the first version of the struct.
    const FIRST: usize;
}

/// Reads and checks the `size` field of a struct.
///
/// # Safety
/// `pointer` is null or points at 4 bytes.
unsafe fn struct_size<T: SizedStruct>(pointer: *const T) -> Result<usize, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("the {} is null", T::NAME)));
    }
    // SAFETY: guaranteed by the caller; the first field of every such struct is a u32.
    let size = unsafe { pointer.cast::<u32>().read_unaligned() } as usize;
    if (T::FIRST..=LARGEST).contains(&size) {
        return Ok(size);
    }
    let message = format!(
        "the `size` of the {name} is {size} and should be {}: set it to sizeof({name})",
        size_of::<T>(),
        name = T::NAME
    );
    Err(Failure::new(Status::StructSize, message))
}

/// Checks the size of a struct before any work is done.
///
/// # Safety
/// As for [`struct_size`].
pub(crate) unsafe fn check_struct<T: SizedStruct>(pointer: *const T) -> Result<(), Failure> {
    // SAFETY: guaranteed by the caller.
    unsafe { struct_size(pointer) }.map(|_| ())
}

/// Reads a struct of the caller. It may be from an older header, and shorter: then the missing fields are 0. Or it may be from a
/// newer header, and longer: then the unknown fields must be 0.
///
/// # Safety
/// `pointer` is null or points at as many bytes as its `size` says.
pub(crate) unsafe fn read_struct<T: SizedStruct>(pointer: *const T) -> Result<T, Failure> {
    // SAFETY: guaranteed by the caller.
    let size = unsafe { struct_size(pointer) }?;
    let mut value = MaybeUninit::<T>::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: both have `known` bytes, and one is new.
    unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known) };
    // SAFETY: `known` is at most `size`.
    let rest = unsafe { slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|&byte| byte != 0) {
        let message =
            format!("the {} sets fields that this library does not know: the library is too old", T::NAME);
        return Err(Failure::new(Status::StructSize, message));
    }
    // SAFETY: any bits are a value, and all bytes were set.
    Ok(unsafe { value.assume_init() })
}

/// As [`read_struct`]; null reads as all zeros.
///
/// # Safety
/// As for the function above.
pub(crate) unsafe fn read_options<T: SizedStruct>(pointer: *const T) -> Result<T, Failure> {
    if pointer.is_null() {
        // SAFETY: any bits are a value.
        return Ok(unsafe { MaybeUninit::zeroed().assume_init() });
    }
    // SAFETY: guaranteed by the caller.
    unsafe { read_struct(pointer) }
}

/// Writes all fields that the caller's struct has, except `size`.
///
/// # Safety
/// `pointer` is null or points at as many bytes as its `size` says.
pub(crate) unsafe fn write_struct<T: SizedStruct>(pointer: *mut T, value: &T) -> Result<(), Failure> {
    const HEAD: usize = size_of::<u32>();
    // SAFETY: guaranteed by the caller.
    let size = unsafe { struct_size(pointer) }?;
    let known = size.min(size_of::<T>());
    let from = ptr::from_ref(value).cast::<u8>();
    let to = pointer.cast::<u8>();
    // SAFETY: both have at least `known` bytes, and no padding among them.
    unsafe { ptr::copy_nonoverlapping(from.add(HEAD), to.add(HEAD), known - HEAD) };
    // SAFETY: the caller's has `size` bytes.
    unsafe { ptr::write_bytes(to.add(known), 0, size - known) };
    Ok(())
}

/// Writes a value through a pointer of the caller.
///
/// # Safety
/// `to` is null or is valid for writing a `T`.
pub(crate) unsafe fn write<T>(to: *mut T, value: T, name: &str) -> Result<(), Failure> {
    check_pointer(to, name)?;
    // SAFETY: checked above; the rest is guaranteed by the caller.
    unsafe { to.write(value) };
    Ok(())
}

/// As [`write`]; does nothing if the pointer is null.
///
/// # Safety
/// As for the function above.
pub(crate) unsafe fn write_optional<T>(to: *mut T, value: T, name: &str) -> Result<(), Failure> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { write(to, value, name) }
}

/// Checks that a pointer is neither null nor misaligned.
pub(crate) fn check_pointer<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is null")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

/// # Safety
/// `items` is null or points at `count` items, which are not modified during the call.
pub(crate) unsafe fn items<'a, T>(items: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(items, name)?;
    check_count::<T>(count, name)?;
    // SAFETY: pointer and count are checked above; the rest is guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(items, count) })
}

fn check_count<T>(count: usize, name: &str) -> Result<(), Failure> {
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::argument(format!("the count of {name}, {count}, exceeds the address space")));
    }
    Ok(())
}

/// A text of `length` bytes, or up to its null character ([`AKUNU_TO_NULL`]).
///
/// # Safety
/// `text` is null or points at that many bytes, which are not modified during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char, length: usize, name: &str) -> Result<&'a str, Failure> {
    let bytes = match length {
        AKUNU_TO_NULL => {
            check_pointer(text, name)?;
            // SAFETY: checked above; the terminator is guaranteed by the caller.
            unsafe { CStr::from_ptr(text) }.to_bytes()
        }
        // SAFETY: guaranteed by the caller.
        _ => unsafe { items(text.cast::<u8>(), length, name) }?,
    };
    str::from_utf8(bytes).map_err(|error| {
        Failure::argument(format!("{name} is not valid UTF-8 at byte {}", error.valid_up_to()))
    })
}

/// A null-terminated text; `None` if the pointer is null.
///
/// # Safety
/// As for the function above.
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { text(pointer, AKUNU_TO_NULL, name) }.map(Some)
}

/// The destination of a result of unknown length: a buffer, its capacity, and a pointer for the length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutBuffer<T> {
    pub(crate) buffer: *mut T,
    pub(crate) capacity: usize,
    pub(crate) length: *mut usize,
}

impl<T: Copy> OutBuffer<T> {
    /// Checks the pointers before any work is done. True: only the length was requested.
    pub(crate) fn check(&self) -> Result<bool, Failure> {
        if !self.length.is_null() {
            check_pointer(self.length, "the length")?;
        }
        if self.buffer.is_null() && self.capacity == 0 {
            check_pointer(self.length, "the length (required without a buffer)")?;
            return Ok(true);
        }
        check_pointer(self.buffer, "the buffer")?;
        check_count::<T>(self.capacity, "the buffer's items")?;
        Ok(false)
    }

    /// Writes the length, and fills the buffer if there is one.
    ///
    /// # Safety
    /// The buffer has the capacity, and `length` is null or valid.
    pub(crate) unsafe fn fill(self, items: &[T]) -> Result<(), Failure> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.fill_with(items, None) }
    }

    /// Writes only the length, of a result that need not be computed: only the length was requested, or the buffer is too small,
    /// which is an error.
    ///
    /// # Safety
    /// As for the function above.
    pub(crate) unsafe fn fill_length(self, needed: usize) -> Result<(), Failure> {
        let only_length = self.check()?;
        // SAFETY: checked above.
        unsafe { write_optional(self.length, needed, "the length") }?;
        if only_length {
            return Ok(());
        }
        Err(too_small(needed, self.capacity))
    }

    /// As [`OutBuffer::fill`], with a terminator that the length does not count but the capacity must.
    ///
    /// # Safety
    /// As for the function above.
    unsafe fn fill_with(self, items: &[T], terminator: Option<T>) -> Result<(), Failure> {
        let only_length = self.check()?;
        // SAFETY: checked above; the rest is guaranteed by the caller.
        unsafe { write_optional(self.length, items.len(), "the length") }?;
        if only_length {
            return Ok(());
        }
        let needed = items.len() + usize::from(terminator.is_some());
        if needed > self.capacity {
            return Err(too_small(needed, self.capacity));
        }
        // SAFETY: the buffer has the capacity, and does not overlap `items`.
        unsafe { ptr::copy_nonoverlapping(items.as_ptr(), self.buffer, items.len()) };
        if let Some(terminator) = terminator {
            // SAFETY: `needed` includes it.
            unsafe { self.buffer.add(items.len()).write(terminator) };
        }
        Ok(())
    }
}

fn too_small(needed: usize, capacity: usize) -> Failure {
    let message = format!("the result needs a buffer of {needed} items, and the capacity is {capacity}");
    Failure::new(Status::BufferTooSmall, message)
}

impl OutBuffer<c_char> {
    /// Writes a text, followed by a null character that the length does not count.
    ///
    /// # Safety
    /// As with [`OutBuffer::fill`].
    pub(crate) unsafe fn fill_text(self, text: &[u8]) -> Result<(), Failure> {
        let bytes =
            OutBuffer { buffer: self.buffer.cast::<u8>(), capacity: self.capacity, length: self.length };
        // SAFETY: guaranteed by the caller; c_char and u8 have the same layout.
        unsafe { bytes.fill_with(text, Some(0)) }
    }
}
