//! Several devices with some of the layers each, as one.

use std::sync::Arc;

use akunu_plan::{Capabilities, Device, DeviceError, MOST_STAGES, Side};

use crate::Hybrid;
use crate::crew::Open;
use crate::devices::Devices;

impl Hybrid {
    /// So many devices of one kind, with some of the layers each, which are opened on threads of their own.
    pub fn stages(
        count: usize,
        open: impl Fn(usize) -> Result<Box<dyn Device>, DeviceError> + Send + Sync + 'static,
    ) -> Result<Hybrid, DeviceError> {
        if !(1..=MOST_STAGES).contains(&count) {
            let message = format!(
                "{count} devices were to share out the layers of a model; it has to be 1 to {MOST_STAGES}"
            );
            return Err(DeviceError::Failed { device: "stages", message });
        }
        let open: Arc<Open> = Arc::new(open);
        let mut devices = Devices::open(count, &open)?;
        let all = (0..count).map(|index| devices.on(index, |device| Ok(device.capabilities().clone())));
        let capabilities = Hybrid::staged(all.collect::<Result<_, _>>()?)?;
        let before = (0..count as u8 - 1).map(Side::Stage);
        Ok(Hybrid::of(capabilities, devices, before.chain([Side::Device]).collect()))
    }

    /// The capabilities for planning on several devices, in the order of the layers that they are to have.
    pub fn staged(mut stages: Vec<Capabilities>) -> Result<Capabilities, DeviceError> {
        let refuse = |message: &str| Err(DeviceError::Failed { device: "stages", message: message.into() });
        let Some(last) = stages.pop() else { return refuse("a model needs a device") };
        let like = |of: &Capabilities| (of.name, of.keys, of.in_place);
        if stages.iter().any(|stage| like(stage) != like(&last)) {
            return refuse("devices that share out the layers of a model have to be of one kind");
        }
        let all =
            |same: fn(&Capabilities, &Capabilities) -> bool| stages.iter().all(|stage| same(stage, &last));
        let same_detail = all(|a, b| a.detail == b.detail);
        let details = stages.iter().chain([&last]).map(|stage| stage.detail.as_str()).collect::<Vec<_>>();
        Ok(Capabilities {
            detail: match same_detail {
                true => format!("{} with some of the layers each: {}", details.len(), last.detail),
                false => details.join("; "),
            },
            // What not all of them do is not planned.
            folds: last.folds && all(|a, _| a.folds),
            half_products: last.half_products.filter(|_| all(|a, b| a.half_products == b.half_products)),
            packed_products: last
                .packed_products
                .filter(|_| all(|a, b| a.packed_products == b.packed_products)),
            eight_products: last.eight_products.filter(|_| all(|a, b| a.eight_products == b.eight_products)),
            block: stages.iter().map(|stage| stage.block).fold(last.block, usize::max),
            prefill_rows: stages.iter().map(|stage| stage.prefill_rows).fold(last.prefill_rows, usize::min),
            // The host begins the commands of each device.
            samples: false,
            chain: 1,
            stages,
            ..last
        })
    }
}
