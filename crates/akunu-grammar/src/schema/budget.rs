//! Limits on the rewriting and its result. `llguidance` cannot be stopped while it reads a schema, and some of its work
//! is quadratic, so what it is given is limited beforehand. `docs/measurements/grammar.md` has the times behind them.

use super::SchemaError;

/// Steps of the rewriting: shapes, properties, values and bytes of patterns that are visited or made.
const STEPS: usize = 1_000_000;
/// Schemas, properties, values and 32 bytes of patterns in the result. The square of an object's properties counts, too.
const OUTPUT: usize = 12_000;
/// Named properties of one object.
pub(super) const PROPERTIES: usize = 1_000;
/// `patternProperties` of one object.
pub(super) const PATTERN_PROPERTIES: usize = 32;
/// Patterns and formats that one string has to match.
pub(super) const CONJUNCTION: usize = 4;
/// Alternatives with a pattern or a length, of one string.
pub(super) const STRINGS: usize = 64;
/// Alternatives of one place.
pub(super) const ALTERNATIVES: usize = 512;
/// Shapes that one object or array with counts becomes.
pub(super) const EXPANSION: usize = 64;
/// Schemas that are nested or refer to each other.
pub(super) const DEPTH: usize = 200;
/// Characters that a string's length, and repetitions that a pattern, may count.
pub(super) const REPETITIONS: u64 = 100_000;

#[derive(Debug, Default)]
pub(super) struct Budget {
    steps: usize,
    output: usize,
}

impl Budget {
    pub fn spend(&mut self, steps: usize) -> Result<(), SchemaError> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > STEPS {
            return Err(too_large(format!("combining its parts takes more than {STEPS} steps")));
        }
        Ok(())
    }

    pub fn output(&mut self, nodes: usize) -> Result<(), SchemaError> {
        self.output = self.output.saturating_add(nodes);
        if self.output > OUTPUT {
            return Err(too_large(format!(
                "it has more than {OUTPUT} parts when its references are followed"
            )));
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn steps(&self) -> usize {
        self.steps
    }
}

/// The place is added where it is known.
pub(super) fn too_large(reason: String) -> SchemaError {
    SchemaError::TooLarge { reason }
}

pub(super) fn at_most(count: usize, limit: usize, what: &str) -> Result<(), SchemaError> {
    if count > limit {
        return Err(too_large(format!("{count} {what}, more than {limit}")));
    }
    Ok(())
}
