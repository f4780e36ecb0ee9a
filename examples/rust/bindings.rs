//! A binding of the C library for Rust, and a program that uses it.
//!
//!   rustc --edition 2021 -O examples/rust/bindings.rs -L LIBRARY_FOLDER
//!   bindings MODEL TENSOR QUANTISED WEIGHT FILE
//!
//! Lists MODEL, reads a slice of TENSOR as floats, writes it to FILE, reads FILE through callbacks, and
//! decodes row 1 of a WEIGHT of the model QUANTISED. Floats are printed as their bits.
use std::os::raw::{c_char, c_void};
use std::os::unix::fs::FileExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::{env, fmt, fs, process, ptr, slice, str};

const F32: i32 = 4;
const RANGE: i32 = 2;

// The structs of the headers. Those with a `size` are passed with the size that they have here.
#[repr(C)]
struct RawError {
    code: i32,
    os_error: i32,
    detail: i32,
    path: u16,
    subject: u16,
    text: [u8; 1008],
}

#[repr(C)]
struct Tensor {
    name: *const u8,
    name_size: usize,
    shape: *const u64,
    rank: usize,
    data: *const c_void,
    nbytes: u64,
    begin: u64,
    dtype: i32,
    file: u32,
}

#[repr(C)]
struct Index {
    kind: i32,
    count: u32,
    start: i64,
    stop: i64,
    step: i64,
}

#[repr(C)]
struct Request {
    tensor: *const Tensor,
    indices: *const Index,
    index_count: usize,
    to: *mut c_void,
    room: u64,
    dtype: i32,
    reserved: u32,
}

#[repr(C)]
struct Source {
    size: usize,
    context: *mut c_void,
    nbytes: u64,
    read: extern "C" fn(*mut c_void, u64, *mut u8, usize, *mut RawError) -> i64,
    release: extern "C" fn(*mut c_void),
    concurrency: u32,
    is_request: u32,
    chunk_nbytes: u64,
    gap_nbytes: u64,
}

#[repr(C)]
struct Text {
    data: *const u8,
    size: usize,
}

#[repr(C)]
struct Weight {
    name: Text, // a pointer and a size in C
    source: Text,
    type_name: Text,
    scheme: Text,
    shape: *const i64,
    rank: usize,
    stored_nbytes: u64,
    group_rows: u64,
    group_columns: u64,
    norm_offset: f64,
    type_number: u32,
    scales_type: u32,
    storage: i32,
    quant_mode: i32,
    bits: u32,
    part_count: u32,
    flags: u32,
    reserved: u32,
}

#[repr(C)]
struct Value {
    kind: i32,
    stored_type: i32,
    integer: i64,
    number: f64,
    string: *const u8,
    string_size: usize,
    items: *const c_void,
    count: usize,
}

enum CFile {}
enum CWriter {}
enum CWeights {}

#[link(name = "safetensors_c")]
extern "C" {
    fn safetensors_dtype_name(dtype: i32) -> *const c_char;
    fn safetensors_open_model(path: *const u8, size: usize, options: *const c_void, file: *mut *mut CFile, error: *mut RawError) -> i32;
    fn safetensors_open_source(source: *const Source, label: *const u8, size: usize, options: *const c_void, file: *mut *mut CFile, error: *mut RawError) -> i32;
    fn safetensors_close(file: *mut CFile);
    fn safetensors_count(file: *const CFile) -> usize;
    fn safetensors_at(file: *const CFile, index: usize, tensor: *mut Tensor, error: *mut RawError) -> i32;
    fn safetensors_find(file: *const CFile, name: *const u8, size: usize, tensor: *mut Tensor, error: *mut RawError) -> i32;
    fn safetensors_read(file: *const CFile, requests: *const Request, count: usize, watch: *const c_void, error: *mut RawError) -> i32;
    fn safetensors_writer_create(path: *const u8, size: usize, tensors: *const Tensor, count: usize, options: *const c_void, writer: *mut *mut CWriter, error: *mut RawError) -> i32;
    fn safetensors_writer_write(writer: *mut CWriter, name: *const u8, size: usize, begin: u64, bytes: *const c_void, nbytes: u64, error: *mut RawError) -> i32;
    fn safetensors_writer_commit(writer: *mut CWriter, error: *mut RawError) -> i32;
    fn safetensors_writer_free(writer: *mut CWriter);
    fn safetensors_weights_open(path: *const u8, size: usize, options: *const c_void, weights: *mut *mut CWeights, error: *mut RawError) -> i32;
    fn safetensors_weights_close(weights: *mut CWeights);
    fn safetensors_weights_find(weights: *const CWeights, name: *const u8, size: usize, weight: *mut Weight, error: *mut RawError) -> i32;
    fn safetensors_weights_config(weights: *const CWeights, field: *const u8, size: usize, value: *mut Value, error: *mut RawError) -> i32;
    fn safetensors_weights_decode(weights: *const CWeights, name: *const u8, size: usize, row: i64, rows: i64, dtype: i32, to: *mut c_void, room: u64, watch: *const c_void, error: *mut RawError) -> i32;
}

/// What a function of the library failed with.
struct Error {
    code: i32,
    text: String,
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "{}", self.text)
    }
}

/// Calls a function of the library with room for an error.
fn call(function: impl FnOnce(*mut RawError) -> i32) -> Result<(), Error> {
    let mut error: RawError = unsafe { std::mem::zeroed() };
    let code = function(&mut error);
    if code == 0 {
        return Ok(());
    }
    let end = error.text.iter().position(|&byte| byte == 0).unwrap_or(0);
    Err(Error { code, text: String::from_utf8_lossy(&error.text[..end]).into_owned() })
}

/// Returns items of the library, which are valid as long as their handle. Its pointer to no items may
/// be NULL, which a slice's must not be.
fn items<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 { &[] } else { unsafe { slice::from_raw_parts(data, count) } }
}

/// Returns a copy of a text of the library.
fn text(data: *const u8, size: usize) -> String {
    String::from_utf8_lossy(items(data, size)).into_owned()
}

/// A file or a model of several files.
struct File(*mut CFile);

impl File {
    fn open(path: &str) -> Result<File, Error> {
        let mut file = ptr::null_mut();
        call(|error| unsafe { safetensors_open_model(path.as_ptr(), path.len(), ptr::null(), &mut file, error) })?;
        Ok(File(file))
    }

    /// Opens a file that the library reads by `read_at`.
    fn stream(from: fs::File, label: &str) -> Result<File, Error> {
        let nbytes = from.metadata().map(|about| about.len()).unwrap_or(0);
        let source = Source {
            size: std::mem::size_of::<Source>(),
            context: Box::into_raw(Box::new(from)) as *mut c_void, // release() takes it back
            nbytes,
            read: read_at,
            release,
            concurrency: 0,
            is_request: 0,
            chunk_nbytes: 0,
            gap_nbytes: 0,
        };
        let mut file = ptr::null_mut();
        call(|error| unsafe { safetensors_open_source(&source, label.as_ptr(), label.len(), ptr::null(), &mut file, error) })?;
        Ok(File(file))
    }

    fn tensors(&self) -> Result<Vec<Tensor>, Error> {
        (0..unsafe { safetensors_count(self.0) })
            .map(|index| {
                let mut tensor: Tensor = unsafe { std::mem::zeroed() };
                call(|error| unsafe { safetensors_at(self.0, index, &mut tensor, error) })?;
                Ok(tensor)
            })
            .collect()
    }

    fn find(&self, name: &str) -> Result<Tensor, Error> {
        let mut tensor: Tensor = unsafe { std::mem::zeroed() };
        call(|error| unsafe { safetensors_find(self.0, name.as_ptr(), name.len(), &mut tensor, error) })?;
        Ok(tensor)
    }

    /// Reads `count` elements, those that the ranges select, as floats.
    fn floats(&self, tensor: &Tensor, ranges: &[Index], count: usize) -> Result<Vec<f32>, Error> {
        let mut values = vec![0f32; count];
        let request = Request {
            tensor,
            indices: ranges.as_ptr(),
            index_count: ranges.len(),
            to: values.as_mut_ptr() as *mut c_void,
            room: 4 * count as u64,
            dtype: F32,
            reserved: 0,
        };
        call(|error| unsafe { safetensors_read(self.0, &request, 1, ptr::null(), error) })?;
        Ok(values)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        unsafe { safetensors_close(self.0) }
    }
}

/// Runs on threads of the library, several at once. A panic must not leave it.
extern "C" fn read_at(context: *mut c_void, offset: u64, to: *mut u8, nbytes: usize, error: *mut RawError) -> i64 {
    let read = || {
        let file = unsafe { &*(context as *const fs::File) };
        file.read_at(unsafe { slice::from_raw_parts_mut(to, nbytes) }, offset)
    };
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(count)) => count as i64,
        Ok(Err(failure)) => {
            unsafe { (*error).os_error = failure.raw_os_error().unwrap_or(0) };
            -1
        }
        Err(_) => -1,
    }
}

extern "C" fn release(context: *mut c_void) {
    drop(unsafe { Box::from_raw(context as *mut fs::File) });
}

/// Writes a file of one tensor of floats.
fn write(path: &str, name: &str, shape: &[u64], values: &[f32]) -> Result<(), Error> {
    let nbytes = std::mem::size_of_val(values) as u64;
    let spec = Tensor {
        name: name.as_ptr(), name_size: name.len(), shape: shape.as_ptr(), rank: shape.len(),
        data: ptr::null(), nbytes, begin: 0, dtype: F32, file: 0,
    };
    let mut writer = ptr::null_mut();
    call(|error| unsafe { safetensors_writer_create(path.as_ptr(), path.len(), &spec, 1, ptr::null(), &mut writer, error) })?;
    let data = values.as_ptr() as *const c_void;
    let written = call(|error| unsafe { safetensors_writer_write(writer, name.as_ptr(), name.len(), 0, data, nbytes, error) })
        .and_then(|_| call(|error| unsafe { safetensors_writer_commit(writer, error) }));
    unsafe { safetensors_writer_free(writer) }; // without a commit, removes what was written
    written
}

/// A model as named weights.
struct Weights(*mut CWeights);

impl Weights {
    fn open(path: &str) -> Result<Weights, Error> {
        let mut weights = ptr::null_mut();
        call(|error| unsafe { safetensors_weights_open(path.as_ptr(), path.len(), ptr::null(), &mut weights, error) })?;
        Ok(Weights(weights))
    }

    fn find(&self, name: &str) -> Result<Weight, Error> {
        let mut weight: Weight = unsafe { std::mem::zeroed() };
        call(|error| unsafe { safetensors_weights_find(self.0, name.as_ptr(), name.len(), &mut weight, error) })?;
        Ok(weight)
    }

    fn config(&self, field: &str) -> Result<Value, Error> {
        let mut value: Value = unsafe { std::mem::zeroed() };
        call(|error| unsafe { safetensors_weights_config(self.0, field.as_ptr(), field.len(), &mut value, error) })?;
        Ok(value)
    }

    fn row(&self, name: &str, row: i64, columns: usize) -> Result<Vec<f32>, Error> {
        let mut values = vec![0f32; columns];
        let to = values.as_mut_ptr() as *mut c_void;
        call(|error| unsafe { safetensors_weights_decode(self.0, name.as_ptr(), name.len(), row, 1, F32, to, 4 * columns as u64, ptr::null(), error) })?;
        Ok(values)
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        unsafe { safetensors_weights_close(self.0) }
    }
}

fn show(what: &str, values: &[f32]) {
    let words: Vec<String> = values.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
    println!("{what} {}", words.join(" "));
}

fn run(model: &str, name: &str, quantised: &str, weight: &str, path: &str) -> Result<(), Error> {
    let file = File::open(model)?;
    for tensor in file.tensors()? {
        let shape = items(tensor.shape, tensor.rank);
        let dtype = unsafe { std::ffi::CStr::from_ptr(safetensors_dtype_name(tensor.dtype)) };
        println!("tensor {} {} {shape:?}", text(tensor.name, tensor.name_size), dtype.to_string_lossy());
    }
    // Every second of the first four rows, and columns 1 to 3.
    let part = [
        Index { kind: RANGE, count: 0, start: 0, stop: 4, step: 2 },
        Index { kind: RANGE, count: 0, start: 1, stop: 4, step: 1 },
    ];
    let values = file.floats(&file.find(name)?, &part, 6)?;
    show("slice", &values);
    write(path, "slice", &[2, 3], &values)?;
    let streamed = File::stream(fs::File::open(path).expect("it was written"), "stream")?;
    show("streamed", &streamed.floats(&streamed.find("slice")?, &[], 6)?);
    match file.find("no such tensor") {
        Ok(_) => println!("found"),
        Err(error) => println!("missing {}", error.code),
    }
    let weights = Weights::open(quantised)?;
    let architecture = weights.config("architecture")?;
    let layers = weights.config("n_layers")?.integer;
    println!("model {} {layers}", text(architecture.string, architecture.string_size));
    let found = weights.find(weight)?;
    let columns = unsafe { *found.shape.add(found.rank - 1) } as usize;
    println!("weight {} {}", text(found.type_name.data, found.type_name.size), found.part_count);
    show("row", &weights.row(weight, 1, columns)?);
    Ok(())
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    if let [model, name, quantised, weight, path] = words.as_slice() {
        if let Err(error) = run(model, name, quantised, weight, path) {
            eprintln!("{error}");
            process::exit(1);
        }
    } else {
        eprintln!("usage: bindings MODEL TENSOR QUANTISED WEIGHT FILE");
        process::exit(2);
    }
}
