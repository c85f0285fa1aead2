mod files;
mod mel;
