//! What KubeVirt's API cannot say, and only a domain hook can set. This release has no hook: it reports what would be
//! asked of one.

use serde_json::json;

use super::context::Context;
use super::profile::Picked;
use super::settings::{Outcome, Setting};
use crate::api::overrides::Switch;

/// Plans every wish to a domain hook.
pub(super) fn plan(cx: &Context<'_>) -> Vec<Setting> {
    let wishes: [(&'static str, Picked<Switch>); 4] = [
        ("hook.ioUring", cx.desired.pick(|o| o.hook.io_uring)),
        ("hook.avic", cx.desired.pick(|o| o.hook.avic)),
        ("hook.xmmInput", cx.desired.pick(|o| o.hook.xmm_input)),
        ("hook.emsrBitmap", cx.desired.pick(|o| o.hook.emsr_bitmap)),
    ];
    let wish = |(name, picked): (&'static str, Picked<Switch>)| {
        if picked.value != Some(Switch::On) {
            return None;
        }
        let (reason, source) = cx.desired.said(name);
        let mut setting = Setting::new(String::new(), None, json!(true), reason, source);
        setting.field = name.to_owned();
        let outcome = cx.unused(name).unwrap_or_else(|| Outcome::Waits {
            evidence: "a domain hook, because KubeVirt's API has no field for it".to_owned(),
            unblock: "nothing yet: this release has no domain hook".to_owned(),
        });
        Some(setting.outcome(outcome))
    };
    wishes.into_iter().filter_map(wish).collect()
}
