"""Record a Lightning training run: `Trainer(callbacks=[RecordRun("out/mine")])`."""

from grokscope import Recorder
from lightning.pytorch import Callback


class RecordRun(Callback):
    def __init__(self, path, **options):
        self.path, self.options = path, options

    def on_train_start(self, trainer, module):
        begun = trainer.global_step or None  # a checkpoint that training goes on from
        self.recorder = Recorder(self.path, module, trainer.optimizers[0], resume=begun, **self.options)
        if not begun:
            self.recorder.step(0)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step > self.recorder.last_step:  # not while gradients accumulate
            metrics = {name.replace("/", "."): value for name, value in trainer.callback_metrics.items()}
            self.recorder.step(trainer.global_step, metrics)

    def on_train_end(self, trainer, module):
        self.recorder.finish()

    def on_exception(self, trainer, module, exception):
        self.recorder.close()
