//! `/v1/channels`: where notices go, how far each has come, and what it gave up on.
//!
//! Owns: how that is put. What channels there are is the configuration's, and delivering is theirs.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;

use super::error::ApiError;
use super::view;
use super::{App, wire};
use crate::channel::{Known, kind_word, wants};
use crate::config::{Channel, Delivery};
use crate::feed::MAX_LINES;
use crate::random::new_run_id;
use crate::store::Wanted;
use crate::store::channel::{Letter, Mark, consumer_of};
use crate::time::Time;

/// Dead letters that a list shows of each channel: the newest.
const SHOWN_LETTERS: usize = 20;

/// Where notices go, and how that is going.
#[utoipa::path(get, path = "/v1/channels", responses((status = 200, body = Vec<wire::Channel>)))]
pub(super) async fn list(State(app): State<App>) -> Result<Json<Vec<wire::Channel>>, ApiError> {
    Ok(Json(app.channel_views().await?))
}

/// Has everything that a channel gave up on delivered again.
#[utoipa::path(post, path = "/v1/channels/{channel}/retry", params(("channel" = String, Path)),
    responses((status = 200, body = wire::Retried), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn retry(
    State(app): State<App>,
    Path(name): Path<String>,
    _body: Bytes,
) -> Result<Json<wire::Retried>, ApiError> {
    let channel = app.channel(&name).await?;
    let letters = app.inbox.mark(&channel.name, Mark::Again).await?;
    app.channels.poke(&channel.name);
    Ok(Json(wire::Retried { letters: letters as u64 }))
}

/// Tries a channel once, with a notice that is about nothing, and answers with what came of it.
#[utoipa::path(post, path = "/v1/channels/{channel}/test", params(("channel" = String, Path)),
    responses((status = 200, body = wire::Tested), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn test(
    State(app): State<App>,
    Path(name): Path<String>,
    _body: Bytes,
) -> Result<Json<wire::Tested>, ApiError> {
    let channel = app.channel(&name).await?;
    let own = new_run_id().map_err(|e| ApiError::internal(e.to_string()))?;
    let notice = view::test_notice(&format!("test/{name}/{own}"));
    let tested = match app.channels.test(&app, channel, &notice).await {
        Ok(answer) => wire::Tested { delivered: true, id: notice.id, message: answer },
        Err(failed) => wire::Tested { delivered: false, id: notice.id, message: failed.error },
    };
    Ok(Json(tested))
}

impl App {
    async fn channel(&self, name: &str) -> Result<std::sync::Arc<Channel>, ApiError> {
        let found = self.channels.get(self, name).await;
        found.ok_or_else(|| {
            let message = format!("there is no channel {name:?}");
            let file = self.home.config_file();
            ApiError::new(StatusCode::NOT_FOUND, "channel_not_found", message)
                .hint(format!("channels are [[channel]] in {}", file.display()))
        })
    }

    /// Every channel that is configured, as it is shown.
    pub(crate) async fn channel_views(&self) -> Result<Vec<wire::Channel>, ApiError> {
        let mut views = Vec::new();
        for (channel, known) in self.channels.all(self).await {
            views.push(self.channel_view(&channel, known).await?);
        }
        Ok(views)
    }

    async fn channel_view(
        &self,
        channel: &Channel,
        known: Known,
    ) -> Result<wire::Channel, ApiError> {
        let place = self.store.place(&consumer_of(&channel.name)).await?;
        let acked = place.map_or_else(|| self.feed.last(), |place| place.acked);
        let pending = match &channel.delivery {
            Delivery::Wake { .. } => known.waiting,
            Delivery::Webhook { .. } | Delivery::Command { .. } | Delivery::Desktop => {
                let wanted = Wanted { after: acked, limit: MAX_LINES, quiet: false, run: None };
                let (lines, _) = self.feed.notices(wanted).await?;
                let told = lines.lines.iter().filter_map(view::notice);
                told.filter(|notice| wants(channel, notice)).count() as u64
            }
        };
        let letters = self.store.letters(&channel.name).await?;
        let newest = letters.iter().rev().take(SHOWN_LETTERS);
        Ok(wire::Channel {
            name: channel.name.clone(),
            kind: kind_word(&channel.delivery).to_owned(),
            acked,
            pending,
            delivered: known.delivered,
            failed: known.failed,
            last_delivered_at: known.last_delivered,
            last_error: known.last_error,
            next_try_at: known.next_try,
            dead_letters: letters.len() as u64,
            letters: newest.map(letter).collect(),
        })
    }
}

fn letter(letter: &Letter) -> wire::DeadLetter {
    wire::DeadLetter {
        seq: letter.seq,
        notice: letter.notice.clone(),
        tries: letter.tries,
        error: letter.error.clone(),
        at: Time(letter.at_ms),
        again: letter.again,
    }
}
