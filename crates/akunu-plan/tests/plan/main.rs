mod common;
mod costs;
mod encoders;
mod goldens;
mod listening;
mod plans;
mod tables;
