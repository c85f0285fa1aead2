mod common;
mod costs;
mod encoders;
mod goldens;
mod plans;
mod tables;
