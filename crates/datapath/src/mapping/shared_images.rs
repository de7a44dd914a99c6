//! The images below a volume that other programs use, too.

use underseal_device::{LossHandler, SharedImage, each_below};

use super::Mapping;

impl Mapping {
    /// Has the devices [release](SharedImage::let_go) shared resources that other processes wait
    /// for, after the last request.
    pub fn let_go(&self) {
        self.each_shared_image(|image| image.let_go());
    }

    /// Calls `act` when a device is [lost](SharedImage::when_lost).
    pub fn when_lost(&self, act: LossHandler) {
        self.each_shared_image(|image| image.when_lost(act.clone()));
    }

    pub(super) fn each_shared_image(&self, act: impl Fn(&dyn SharedImage)) {
        each_below(&self.devices, |device| device.shared_image().into_iter().for_each(&act));
    }
}
