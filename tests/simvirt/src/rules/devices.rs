//! Machine, firmware and devices other than disks.

use super::Check;
use crate::value::{flag, list, present, text};

const MODELS: [&str; 7] = ["e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio"];

pub(super) fn check(check: &mut Check<'_>) {
    inputs(check);
    machine(check);
    secure_boot(check);
    launch_security(check);
    panic_devices(check);
}

fn inputs(check: &mut Check<'_>) {
    for (index, input) in list(check.spec, "/domain/devices/inputs").iter().enumerate() {
        let field = format!(".domain.devices.inputs[{index}]");
        if text(input, "/type") != Some("tablet") {
            check.refuse(&field, "Input device can have only tablet type.".to_owned());
        }
        if text(input, "/bus").is_some_and(|bus| !["", "virtio", "usb"].contains(&bus)) {
            check.refuse(&field, "Input device can have only virtio or usb bus.".to_owned());
        }
    }
}

/// Network device models.
pub(super) fn interfaces(check: &mut Check<'_>) {
    for (index, interface) in list(check.spec, "/domain/devices/interfaces").iter().enumerate() {
        let Some(model) = text(interface, "/model").filter(|m| !MODELS.contains(m)) else {
            continue;
        };
        let field = format!(".domain.devices.interfaces[{index}].name");
        let message = format!("interface {}{field} uses model {model} that is not supported.", check.at);
        check.refuse(&field, message);
    }
}

fn is_arm(check: &Check<'_>) -> bool {
    text(check.spec, "/architecture") == Some("arm64")
}

fn machine(check: &mut Check<'_>) {
    let Some(machine) = text(check.spec, "/domain/machine/type").map(str::to_owned) else {
        return;
    };
    let allowed: &[&str] = if is_arm(check) { &["virt"] } else { &["q35", "pc-q35"] };
    if allowed.iter().any(|prefix| machine.starts_with(prefix)) {
        return;
    }
    let allowed: Vec<String> = allowed.iter().map(|prefix| format!("{prefix}*")).collect();
    let message = format!(
        "{}.domain.machine.type is not supported: {machine} (allowed values: [{}])",
        check.at,
        allowed.join(" ")
    );
    check.refuse(".domain.machine.type", message);
}

fn secure_boot(check: &mut Check<'_>) {
    const EFI: &str = "/domain/firmware/bootloader/efi";
    // Secure boot is the default of EFI.
    if !present(check.spec, EFI) || flag(check.spec, &format!("{EFI}/secureBoot")) == Some(false) {
        return;
    }
    let smm =
        present(check.spec, "/domain/features/smm") && flag(check.spec, "/domain/features/smm/enabled") != Some(false);
    if !smm {
        let message = format!(
            "{}.domain has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled.",
            check.at
        );
        check.refuse(".domain.features", message);
    }
}

fn launch_security(check: &mut Check<'_>) {
    let efi = present(check.spec, "/domain/firmware/bootloader/efi");
    if present(check.spec, "/domain/launchSecurity/sev") && !efi {
        check.refuse(".domain.launchSecurity", "SEV requires OVMF (UEFI)".to_owned());
    }
}

fn panic_devices(check: &mut Check<'_>) {
    for (index, device) in list(check.spec, "/domain/devices/panicDevices").iter().enumerate() {
        if let Some(model) = text(device, "/model").filter(|m| !["hyperv", "isa", "pvpanic"].contains(m)) {
            check.refuse(
                &format!(".domain.devices.panicDevices[{index}].model"),
                format!("invalid PanicDeviceModel({model})"),
            );
        }
    }
}

/// Checks that only the VMI's creation makes.
pub(super) fn per_architecture(check: &mut Check<'_>) {
    if !is_arm(check) {
        return;
    }
    for (index, disk) in list(check.spec, "/domain/devices/disks").iter().enumerate() {
        let bus = ["disk", "lun", "cdrom"].iter().find_map(|kind| text(disk, &format!("/{kind}/bus")));
        if bus.is_some_and(|bus| !["virtio", "scsi"].contains(&bus)) {
            check.refuse(
                &format!(".domain.devices.disks[{index}]"),
                "Arm64 not support this disk bus type, please use virtio or scsi".to_owned(),
            );
        }
    }
}
