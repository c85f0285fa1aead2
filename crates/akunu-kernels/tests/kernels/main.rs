mod functions;
mod shared;
mod words;
