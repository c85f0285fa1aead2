mod kernels;
mod models;
mod sample;
