"""The losses of both papers: In-Context RALM, Eq. 9, for rerankers, and LSR (REPLUG, Eq. 4 to 6) for retrievers.

Each function returns one loss per example, in float32; training takes the mean over the batch. Letters of shapes: B
examples, K candidates. Candidates where `there` is False are padding: they are not read and get no gradient.
"""

import torch


def marginal_loss(scores_BK: torch.Tensor, log_probs_BK: torch.Tensor, there_BK: torch.Tensor) -> torch.Tensor:
    """Return -log sum_i p_rank(d_i) p_LM(y | d_i, x) with p_rank = softmax(scores) (In-Context RALM, Eq. 9).

    `log_probs_BK`: log p_LM of the whole continuation y after each candidate; -inf marks a candidate after which y is
    impossible. The gradient with respect to the scores is p_rank - r with r in proportion to p_rank p_LM.
    """
    return -torch_mix(_only(log_probs_BK, there_BK).detach(), _only(scores_BK, there_BK))


def torch_mix(log_probs_BK: torch.Tensor, scores_BK: torch.Tensor) -> torch.Tensor:
    """Return `ralm.reading.mixture.mix` (REPLUG, Eq. 2) with weights softmax(scores), and a gradient for these."""
    return (scores_BK + log_probs_BK).logsumexp(dim=1) - scores_BK.logsumexp(dim=1)


def divergence_loss(
    scores_BK: torch.Tensor,
    lm_scores_BK: torch.Tensor,
    there_BK: torch.Tensor,
    *,
    gamma: float = 0.1,
    beta: float = 0.1,
) -> torch.Tensor:
    """Return KL(Q || P_R), the loss of LSR (REPLUG, Eq. 6).

    P_R = softmax(scores / gamma) is the retrieval likelihood (REPLUG, Eq. 4), and Q = softmax(LM scores / beta) the
    likelihood of the language model (REPLUG, Eq. 5). `lm_scores_BK`: see `LSROptions.lm_scores`; -inf gives a candidate
    no weight. Q gets no gradient.
    """
    log_p_BK = (_only(scores_BK, there_BK) / gamma).log_softmax(dim=1)
    log_q_BK = (_only(lm_scores_BK, there_BK).detach() / beta).log_softmax(dim=1)
    parts_BK = log_q_BK.exp() * (log_q_BK - log_p_BK)
    return torch.where(log_q_BK == -torch.inf, 0, parts_BK).sum(dim=1)


def _only(values_BK: torch.Tensor, there_BK: torch.Tensor) -> torch.Tensor:
    """Return the values in float32, with -inf where there is no candidate."""
    return torch.where(there_BK, values_BK.float(), -torch.inf)
